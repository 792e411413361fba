"""Stage 1: a probe and its data become a manifest on disk."""
