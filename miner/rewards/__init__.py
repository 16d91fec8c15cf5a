"""Rewards: of episodes, shaping by potential, returns and advantages per turn."""
