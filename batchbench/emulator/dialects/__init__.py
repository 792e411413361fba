"""The providers' wire formats, one package each."""
