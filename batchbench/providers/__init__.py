"""One module per API, each exporting PROVIDER."""

import importlib

from batchbench.providers.seam import Provider, Remote

__all__ = ["Provider", "Remote", "load"]


def load(name: str) -> Provider:
    """The provider called `name`."""
    provider: Provider = importlib.import_module(f"{__name__}.{name}").PROVIDER
    return provider
