"""InterCode, the tournament's seventh environment: bash tasks in a file system of their own."""
