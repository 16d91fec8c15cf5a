"""Who can play: fixed rules, searches, exact strategies, models in this process, endpoints."""
