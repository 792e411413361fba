"""The compression module, under one name for all Python versions."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import compress, open
else:
    from backports.zstd import compress, open

__all__ = ["compress", "open"]
