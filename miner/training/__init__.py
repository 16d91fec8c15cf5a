"""Training: one run from its settings to a published model."""
