"""The error of whoever asks for what cannot work."""


class ConfigurationError(Exception):
    """What a person asked for cannot work (unknown game, empty URL list): fix the settings."""
