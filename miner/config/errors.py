"""The error of whoever asks for what cannot work."""


class ConfigurationError(Exception):
    """Settings that cannot work (unknown game, empty URL list): fix them."""
