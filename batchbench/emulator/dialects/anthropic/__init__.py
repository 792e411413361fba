"""The Anthropic API."""
