"""What a person sees of a league: tables, a picture, a page with replays, JSON."""
