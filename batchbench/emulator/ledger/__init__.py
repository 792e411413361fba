"""The emulator's state: an append-only list of events."""
