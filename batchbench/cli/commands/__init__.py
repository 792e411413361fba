"""One module per command: options and printing."""
