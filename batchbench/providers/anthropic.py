"""Anthropic's Message Batches: one call sends all requests, one file has all results."""

from collections.abc import Callable
from functools import partial
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from batchbench.errors import UsageError
from batchbench.providers import families
from batchbench.providers.anthropic_results import decode, decode_reply, problem, verdict
from batchbench.providers.anthropic_wire import Batch, Capabilities, Model
from batchbench.providers.interface import (
    Http,
    Limits,
    Line,
    ModelInfo,
    Order,
    Provider,
    Remote,
    decoded,
    decoded_loosely,
    paged,
)
from batchbench.providers.lenient import lenient
from batchbench.providers.target import OWN_ADDRESSES, Target, with_extra

__all__ = ["PROVIDER", "check", "decode", "encoder", "problem", "read", "verdict"]

PATH = "/v1/messages/batches"
VERSION = "2023-06-01"  # with this version, older models accept sampling parameters


def check(target: Target) -> None:
    """Refuse parameters that the API or the model does not accept."""
    if target.top_logprobs is not None:
        raise UsageError("anthropic gives no log-probabilities: use another provider or another form of the probe")
    family, thinking = families.find("anthropic", target.model), target.resolved_thinking()
    known_to_refuse = not family.sampling and not (target.emulated and not family.pattern)
    for name in ("temperature", "top_p"):
        if getattr(target, name) is not None and (known_to_refuse or thinking.effort):
            while_thinking = "" if known_to_refuse else " while it thinks"
            raise UsageError(f"anthropic:{target.model} takes no {name}{while_thinking}: leave it out")
    if "budget_tokens" in str(thinking.fields) and target.max_tokens <= families.BUDGET:
        raise UsageError(f"anthropic:{target.model} needs --max-tokens above {families.BUDGET:,} to think: raise it")
    _around_prompt(target)


def encoder(target: Target) -> Callable[[str, str], bytes]:
    """Requests differ only in id and prompt, so the rest is encoded once."""
    head, tail = _around_prompt(target)
    middle, end = b'","params":' + head, tail + b"}"
    encode = msgspec.json.Encoder().encode

    def request(custom_id: str, prompt: str) -> bytes:
        return b'{"custom_id":"' + custom_id.encode() + middle + encode(prompt) + end

    return request


def _around_prompt(target: Target) -> tuple[bytes, bytes]:
    """A message's body before and after the prompt."""
    parameters: dict[str, object] = {"model": target.model, "max_tokens": target.max_tokens}
    optional = {"system": target.system, "temperature": target.temperature, "top_p": target.top_p}
    parameters |= {name: value for name, value in optional.items() if value is not None}
    body = with_extra(parameters, target, "thinking")
    whole = {**body, "messages": [{"role": "user", "content": "\0"}]}
    head, _, tail = msgspec.json.encode(whole).rpartition(b'"\\u0000"')  # the prompt is last
    return head, tail


async def create(http: Http, order: Order) -> Remote:
    """Buy the batch; only the ids of its requests show later that it is ours."""
    parts = [b'{"requests":[']
    for request in order.requests:
        parts += [request, b","]
    parts[-1] = b"]}"
    return read(await http.once(PATH, parts), http.base_url)


async def get(http: Http, batch: str) -> Remote:
    """Read one batch."""
    return read(await http.get(f"{PATH}/{batch}"), http.base_url)


def read(content: bytes, base_url: str = "") -> Remote:
    """Decode a batch object that came from `base_url`."""
    batch = decoded_loosely(content, Batch)
    counts = batch.request_counts
    own_path = f"{PATH}/{batch.id}/results"
    status = batch.processing_status.lower()
    ended = status == "ended"
    return Remote(
        id=batch.id,
        state="ended" if ended else "running",
        provider_status=status,
        created=batch.created_at.timestamp(),
        expires=batch.expires_at.timestamp() if batch.expires_at else None,
        total=counts.total if counts else None,
        done=counts.total - (counts.processing or 0) if counts else None,
        parts=[("results", _path_of(batch.results_url, base_url) or own_path)] if ended else [],
    )


def _path_of(url: str | None, base_url: str) -> str | None:
    """The part of a URL after the base URL; None if it is elsewhere: a reply must not choose where the key is sent."""
    try:
        there, base = urlsplit(url or ""), urlsplit(base_url)
        same = (there.scheme, there.hostname, _port(there)) == (base.scheme, base.hostname, _port(base))
    except ValueError:
        return None
    if not base.hostname or not same or not there.path.startswith(f"{base.path}/") or not there.path.isascii():
        return None
    path = there.path.removeprefix(base.path)
    return f"{path}?{there.query}" if there.query else path


def _port(parts: SplitResult) -> int | None:
    return parts.port or {"http": 80, "https": 443}.get(parts.scheme)


async def listing(http: Http, since: float) -> list[Remote]:
    """Every batch of the workspace created since then, newest first, a thousand per page."""
    return await paged(http, PATH, 1000, "after_id", since, partial(read, base_url=http.base_url))


async def cancel(http: Http, batch: str) -> None:
    """Stop a batch; its answers so far are kept and charged."""
    await http.post(f"{PATH}/{batch}/cancel")


async def ask(http: Http, target: Target, prompt: str) -> Line:
    """Ask one question, without a batch."""
    head, tail = _around_prompt(target)
    answer = await http.once("/v1/messages", head + msgspec.json.encode(prompt) + tail)
    return decode_reply(answer)


async def describe(http: Http, target: Target) -> ModelInfo:
    """What the provider tells about a model."""
    model = lenient(decoded(await http.get(f"/v1/models/{quote(target.model, safe='')}"), dict), Model)
    able = model.capabilities or Capabilities()
    types = able.thinking.types if able.thinking else None
    return ModelInfo(
        id=model.id or target.model,
        retires=model.retires_at[:10] if model.retires_at else None,
        batch=able.batch.supported if able.batch else None,
        thinking=_supported(types),
        efforts=_supported(able.effort),
        max_output_tokens=model.max_tokens,
    )


def _supported(options: dict[str, object] | None) -> list[str] | None:
    """The names of the supported options."""
    if options is None:
        return None
    return [name for name, value in options.items() if isinstance(value, dict) and value.get("supported") is True]


PROVIDER = Provider(
    name="anthropic",
    key_variable="ANTHROPIC_API_KEY",
    url_variable="ANTHROPIC_BASE_URL",
    base_url=OWN_ADDRESSES["anthropic"],
    limits=Limits(requests=50_000, bytes=250_000_000, open_batches=50, queued_requests=100_000),
    headers=lambda key: {"x-api-key": key, "anthropic-version": VERSION},
    check=check,
    encoder=encoder,
    upload=None,
    create=create,
    get=get,
    read=read,
    listing=listing,
    cancel=cancel,
    ask=ask,
    decode=decode,
    problem=problem,
    verdict=verdict,
    describe=describe,
    result_line='{"custom_id": "ID", "result": {"type": "succeeded", "message": {"content": [...], "usage": {}}}}',
    result_fields=("result",),
    names_batches=False,
)
