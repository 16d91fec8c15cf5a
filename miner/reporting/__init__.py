"""What a person looks at: records of a run, live progress, figures, tables, replays, one page."""
