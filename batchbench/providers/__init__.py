"""One module per API, each exporting PROVIDER."""

import importlib

from batchbench.errors import unknown
from batchbench.providers.interface import Provider, Remote
from batchbench.providers.target import PROVIDERS

__all__ = ["Provider", "Remote", "load"]


def load_provider(name: str) -> Provider:
    """The provider called `name`."""
    if name not in PROVIDERS or name == "sim":  # the emulator answers as one of the others
        raise unknown("provider", name, PROVIDERS)
    provider: Provider = importlib.import_module(f"{__name__}.{name}").PROVIDER
    return provider
