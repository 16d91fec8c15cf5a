"""Several trainer processes: launched, agreed, and DeepSpeed's ZeRO."""
