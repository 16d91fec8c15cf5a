"""Rollouts: token-exact trajectories and the scheduler of episodes; knows no game."""
