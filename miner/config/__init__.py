"""Settings and the facts of the contract; no torch."""
