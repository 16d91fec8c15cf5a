"""Learning: a step from rows to trees to an update, its trainer, its pace and its checkpoints."""
