"""Training: task stream, trainer and callbacks around TRL's GRPO."""
