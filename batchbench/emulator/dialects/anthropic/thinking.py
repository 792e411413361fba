"""Pure: what a Claude family accepts, and how much it thinks about a request."""

from msgspec import UNSET

from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.families.table import ClaudeFamily
from batchbench.emulator.families.thoughts import thinking
from batchbench.emulator.jobs.answers import ErrorInfo
from batchbench.emulator.personas.interface import Persona

TYPES = ("adaptive", "between_tools", "disabled", "enabled")
OFF = ("between_tools", "disabled")
WITH_OFF = ("low", "medium", "high")  # efforts that can be combined with thinking turned off
LEAST_BUDGET = 1_024


def as_family(params: wire.MessageParams, persona: Persona, family: ClaudeFamily | None) -> Persona | ErrorInfo:
    """The persona as a model of this family, or the provider's error. A model that does not think is the persona."""
    if family is None:
        return persona
    kind = family.default if params.thinking is None else params.thinking.type
    effort = params.output_config.effort if params.output_config is not None else None
    if reason := _refused(params, family, kind, effort):
        return ErrorInfo(400, reason, "invalid_request_error")
    if kind in OFF:
        return persona
    display = params.thinking.display if params.thinking else None
    shown = family.shows_thoughts if display is None else display == "summarized"
    budget = params.thinking.budget_tokens if params.thinking else None
    return thinking(persona, effort or family.effort, "field" if shown else "hidden", budget)


def _refused(params: wire.MessageParams, family: ClaudeFamily, kind: str, effort: str | None) -> str | None:
    """Why the model does not accept these parameters."""
    if params.max_tokens > family.max_tokens:
        most = f"{params.max_tokens} > {family.max_tokens}"
        return f"max_tokens: {most}, which is the maximum allowed number of output tokens for {params.model}"
    if reason := _refused_thinking(params, family, kind):
        return reason
    if effort is not None and not family.efforts:
        return "This model does not support the effort parameter."
    if effort is not None and effort not in family.efforts:
        return f"output_config.effort: Input should be {_listed(family.efforts)}"
    if kind in OFF and effort is not None and effort not in WITH_OFF:
        return f"thinking: thinking cannot be turned off with effort {effort!r}; use {_listed(WITH_OFF)}"
    for name in wire.REMOVED:
        value = getattr(params, name)
        if value is UNSET:
            continue
        if not family.sampling and value != 1:
            return f"`{name}` is deprecated for this model."
        if name == "temperature" and kind not in OFF and value != 1:
            return "`temperature` may only be set to 1 when thinking is enabled."
    return None


def _refused_thinking(params: wire.MessageParams, family: ClaudeFamily, kind: str) -> str | None:
    if kind not in TYPES:
        return f"thinking.type: Input should be {_listed(TYPES)}"
    if kind not in family.thinking:
        off = [name for name in family.thinking if name in OFF]
        advice = f"thinking.type.{off[0]} to turn thinking off" if off else "output_config.effort to think less"
        return f"thinking.type.{kind} is not supported for this model. Use {advice}."
    if kind != "enabled" or params.thinking is None:
        return None
    budget = params.thinking.budget_tokens
    if budget is None:
        return "thinking.enabled.budget_tokens: Field required"
    if budget < LEAST_BUDGET:
        return f"thinking.enabled.budget_tokens: Input should be greater than or equal to {LEAST_BUDGET}"
    if budget >= params.max_tokens:
        return "`max_tokens` must be greater than `thinking.budget_tokens`."
    return None


def _listed(names: tuple[str, ...]) -> str:
    *first, last = (f"'{name}'" for name in names)
    return f"{', '.join(first)} or {last}"
