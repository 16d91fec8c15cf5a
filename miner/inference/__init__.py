"""What generates: one Sampler protocol, and the engines behind it."""
