"""A tiny base language model made from scratch in minutes: it follows labelled numbers."""
