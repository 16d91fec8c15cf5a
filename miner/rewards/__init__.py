"""What it was worth: episode rewards, shaping by potential, returns and advantages per turn."""
