"""Publishing: verified model folders, replaced atomically, in time for the deadline."""
