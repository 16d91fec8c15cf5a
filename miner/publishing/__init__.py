"""Publishing: verified model folders, replaced atomically."""
