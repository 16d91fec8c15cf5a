"""A tiny base model for duels: it knows the form of a move, and little of which one to make."""
