"""The model itself generates: continuous batching over a key-value cache."""
