"""Channels: where episodes come from, one module each, and the registry that names them."""
