"""What the author of a probe imports."""
