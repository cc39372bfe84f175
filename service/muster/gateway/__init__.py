"""The HTTP service. Routes only; what they do lives elsewhere."""
