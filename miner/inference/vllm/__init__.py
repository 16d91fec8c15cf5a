"""vLLM generates: over HTTP or in this process, and how weights get there."""
