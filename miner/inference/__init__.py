"""Inference: one Sampler protocol, and the engines behind it."""
