"""Pure: what distinguishes a run from others of the same probe and model."""

from collections.abc import Mapping

from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers.target import Target


def changed_params(probe: Probe[Params], params: Mapping[str, object]) -> dict[str, object]:
    """Parameters that are not the probe's defaults."""
    defaults = probe.params()
    return {name: value for name, value in params.items() if value != getattr(defaults, name, None)}


def changed_options(probe: Probe[Params], target: Target | None) -> dict[str, object]:
    """Options of a target that are not the defaults; none for answers from a file, which have no target."""
    if target is None:
        return {}
    given = {name: getattr(target, name) for name in ("max_tokens", "temperature", "top_p", "system")}
    # With log-probabilities, max_tokens is always 1, and the probe's parameter `form` says so.
    if target.top_logprobs is not None or target.max_tokens == probe.max_tokens:
        del given["max_tokens"]
    return {name: value for name, value in given.items() if value is not None}
