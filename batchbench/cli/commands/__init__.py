"""One module per command: `add` declares its options, `run` calls the application and prints the result."""
