"""OpenAI's Batch API: upload a file of chat completions, create a batch from it, download two files of results."""

from collections.abc import Callable, Sequence
from urllib.parse import quote

import msgspec

from batchbench.errors import UsageError
from batchbench.providers import families
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
from batchbench.providers.openai_results import decode, decode_reply, problem, verdict
from batchbench.providers.openai_wire import Batch, BatchErrors, Counts, File, Model
from batchbench.providers.target import OWN_ADDRESSES, Target, with_extra

__all__ = ["PATH", "PROVIDER", "body", "check", "decode", "encoder", "problem", "read", "verdict"]

PATH = "/chat/completions"
ENDED = ("completed", "expired", "cancelled", "failed")  # a batch with a status that we do not know is still running
# Errors about a field that is the same in every request: the line that such an error names is not the cause.
SHARED = {"model_not_found", "model_mismatch", "url_mismatch", "invalid_method", "invalid_url"}


def check(target: Target) -> None:
    """Refuse models and parameters that the API does not accept."""
    if not target.emulated and (why := families.unaskable("openai", target.model)):
        raise UsageError(f"openai:{target.model} {why}, so it cannot be asked: choose another model")
    thinks = target.resolved_thinking().effort is not None
    for name in ("temperature", "top_p", "top_logprobs"):
        if getattr(target, name) is not None and thinks:
            raise UsageError(f"openai:{target.model} takes no {name} while it thinks: leave it out")
    body(target)


def body(target: Target) -> dict[str, object]:
    """The request's body without its messages."""
    # Other servers with this API know the older name of the limit.
    limit = "max_completion_tokens" if target.provider == "openai" else "max_tokens"
    parameters: dict[str, object] = {"model": target.model, limit: target.max_tokens}
    if target.temperature is not None:
        parameters["temperature"] = target.temperature
    if target.top_p is not None:
        parameters["top_p"] = target.top_p
    if target.top_logprobs is not None:
        parameters |= {"logprobs": True, "top_logprobs": target.top_logprobs}
    return with_extra(parameters, target)


def encoder(target: Target) -> Callable[[str, str], bytes]:
    """Requests differ only in id and prompt, so the rest is encoded once."""
    head, tail = _around_prompt(target)
    middle, end = b'","method":"POST","url":"/v1/chat/completions","body":' + head, tail + b"}\n"
    encode = msgspec.json.Encoder().encode

    def request(custom_id: str, prompt: str) -> bytes:
        return b'{"custom_id":"' + custom_id.encode() + middle + encode(prompt) + end

    return request


def _around_prompt(target: Target) -> tuple[bytes, bytes]:
    """A chat completion's body before and after the prompt."""
    messages = [{"role": "system", "content": target.system}] if target.system is not None else []
    whole = {**body(target), "messages": [*messages, {"role": "user", "content": "\0"}]}
    head, _, tail = msgspec.json.encode(whole).rpartition(b'"\\u0000"')  # the prompt is last
    return head, tail


async def upload(http: Http, nonce: str, requests: Sequence[bytes]) -> str:
    """Upload the requests as a file named after the nonce; returns the file's id."""
    answer = await http.upload("/files", {"purpose": "batch"}, f"{nonce}.jsonl", requests)
    file = decoded_loosely(answer, File)
    size = sum(map(len, requests))
    if file.bytes is not None and file.bytes != size:
        raise msgspec.ValidationError(f"the provider received {file.bytes} bytes of {size}")
    return file.id


async def create(http: Http, order: Order) -> Remote:
    """Buy the batch."""
    body = {
        "input_file_id": order.file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"batchbench": order.nonce, "run": order.run},
    }
    return read(await http.once("/batches", msgspec.json.encode(body)))


async def get(http: Http, batch: str) -> Remote:
    """Read one batch."""
    return read(await http.get(f"/batches/{batch}"))


def read(content: bytes) -> Remote:
    """Decode a batch object."""
    batch = decoded_loosely(content, Batch)
    status = batch.status.lower()
    errors = (batch.errors.data if isinstance(batch.errors, BatchErrors) else batch.errors) or []
    counts = batch.request_counts or Counts()
    done = [count for count in (counts.completed, counts.failed) if count is not None]
    files = [("output", batch.output_file_id), ("error", batch.error_file_id)]
    parts = [(name, f"/files/{file}/content") for name, file in files if file]
    # Without a reason, or with signs that something ran, a failed batch may have answers.
    rejected = status == "failed" and bool(errors) and not parts and not sum(done)
    refused = {error.line: f"{error.code}: {error.message}" for error in reversed(errors) if error.line is not None}
    if any(error.line is None or error.code in SHARED for error in errors):
        refused = {}
    return Remote(
        id=batch.id,
        state="rejected" if rejected else "ended" if status in ENDED else "running",
        provider_status=status,
        created=batch.created_at,
        expires=batch.expires_at,
        total=counts.total,
        done=sum(done) if done else None,
        nonce=_text(batch.metadata, "batchbench"),
        run=_text(batch.metadata, "run"),
        file=batch.input_file_id,
        input=f"/files/{batch.input_file_id}/content" if batch.input_file_id else None,
        parts=[("refusal", f"/batches/{batch.id}")] if rejected and refused else parts,
        problem="; ".join(f"{error.code}: {error.message}" for error in errors[:3]),
        refused=refused,
        slot=any(error.code == "token_limit_exceeded" for error in errors),
    )


def _text(metadata: dict[str, object] | None, name: str) -> str | None:
    value = (metadata or {}).get(name)
    return value if isinstance(value, str) else None


async def listing(http: Http, since: float) -> list[Remote]:
    """Every batch created since then, newest first, a hundred per page."""
    return await paged(http, "/batches", 100, "after", since, read)


async def cancel(http: Http, batch: str) -> None:
    """Stop a batch; its answers so far are kept and charged."""
    await http.post(f"/batches/{batch}/cancel")


async def ask(http: Http, target: Target, prompt: str) -> Line:
    """Ask one question, without a batch."""
    head, tail = _around_prompt(target)
    answer = await http.once(PATH, head + msgspec.json.encode(prompt) + tail)
    return decode_reply(answer)


async def describe(http: Http, target: Target) -> ModelInfo:
    """What the provider tells about a model."""
    model = lenient(decoded(await http.get(f"/models/{quote(target.model, safe=':')}"), dict), Model)
    return ModelInfo(id=model.id or target.model, retires=model.shutdown_date)


PROVIDER = Provider(
    name="openai",
    key_variable="OPENAI_API_KEY",
    url_variable="OPENAI_BASE_URL",
    base_url=OWN_ADDRESSES["openai"],
    limits=Limits(requests=50_000, bytes=200_000_000, open_batches=50),
    headers=lambda key: {"Authorization": f"Bearer {key}"},
    check=check,
    encoder=encoder,
    upload=upload,
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
    names_batches=True,
)
