"""Duels as episodes: what training and evaluation play where the tournament is today's."""
