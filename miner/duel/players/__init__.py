"""Players: fixed rules, searches, exact strategies, models in this process, endpoints."""
