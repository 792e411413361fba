"""Ask language models millions of bias-probe questions through batch APIs, and measure the answers."""

__version__ = "0.1.0"
