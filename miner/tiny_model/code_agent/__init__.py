"""A tiny base model for code agents: it knows the form of a program, not when to write which."""
