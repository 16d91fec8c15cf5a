"""Output of a league: tables, a picture, a page with replays, JSON."""
