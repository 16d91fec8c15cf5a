"""What is handed over: verified model folders, replaced atomically, in time for the deadline."""
