"""A stand-in for the tournament's environment server: its HTTP API over our own games."""
