"""The GPU partition operator."""
