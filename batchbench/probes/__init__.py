"""One module per probe, each exporting PROBE. Every module in this folder is a probe; kit/ is what they share."""

import importlib
import pkgutil

from batchbench.errors import unknown
from batchbench.probes.kit.probe import Params, Probe


def probe_names() -> list[str]:
    """The names of all probes; no probe is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def load_probe(name: str) -> Probe[Params]:
    """The probe called `name`."""
    if name not in probe_names():
        raise unknown("probe", name, probe_names())
    probe: Probe[Params] = importlib.import_module(f"{__name__}.{name}").PROBE
    return probe
