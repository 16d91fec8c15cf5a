"""Output for the user: records of a run, live progress, figures, tables, replays, one page."""
