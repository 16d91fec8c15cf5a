"""Rewards of episodes, critics, returns and advantages per turn."""
