"""The emulator's state: an append-only file of events."""
