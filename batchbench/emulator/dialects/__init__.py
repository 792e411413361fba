"""The wire formats of the emulated APIs."""
