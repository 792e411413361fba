"""How a request travels: HTTP client, rate limit, batches executed on this machine."""
