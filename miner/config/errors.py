"""The error of settings and arguments that cannot work."""


class ConfigurationError(Exception):
    """Settings that cannot work (unknown game, empty URL list): fix them."""
