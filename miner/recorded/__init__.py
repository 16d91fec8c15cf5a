"""Recorded conversations, as validators mount them: learned as they are, some of them held out."""
