"""Checking the input file of an OpenAI batch, as the provider does between upload and start.

A streaming pass in a worker thread; it holds the ids of the batch and nothing else of it.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.ledger.events import LineError
from batchbench.emulator.personas.interface import FindPersona
from batchbench.emulator.server.limits import Limits

BUFFER = 1 << 20
MOST_ERRORS = 100


class Abandoned(Exception):  # noqa: N818 - nothing is wrong: the emulator is being stopped
    """The pass was told to stop; it left nothing behind but scratch files."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What validation found: errors, or the facts about a good file."""

    errors: list[LineError]
    model: str = ""
    input_tokens: int = 0
    ids: list[str] = []


class _Head(msgspec.Struct, gc=False):
    model: str


class _Envelope(msgspec.Struct, gc=False):
    custom_id: str
    method: str
    url: str
    body: _Head


_envelope = msgspec.json.Decoder(_Envelope)
_full = msgspec.json.Decoder(wire.Line)


def validate(source: Path, endpoint: str, limits: Limits, find: FindPersona, stop: threading.Event) -> Checked:
    """Check an OpenAI input file the way the provider does between upload and start."""
    errors: list[LineError] = []
    ids: dict[str, None] = {}
    models: dict[str, None] = {}
    input_tokens = 0
    total = 0
    if source.stat().st_size > limits.bytes:
        message = f"The batch input file is larger than the {limits.bytes} maximum."
        return Checked(errors=[LineError("file_too_large", message)])
    for number, raw in enumerate(read_lines(source), 1):
        if number % 512 == 0 and stop.is_set():
            raise Abandoned
        if not raw.strip():
            continue
        total += 1
        if total > limits.requests:
            message = f"The batch input file contains more than {limits.requests} requests."
            return Checked(errors=[LineError("too_many_tasks", message)])
        try:
            line = _envelope.decode(raw)
        except (ValueError, RecursionError) as error:
            errors.append(_line_error(error, number))
        else:
            if line.url != endpoint:
                message = f"The URL provided for this request does not match the batch endpoint {endpoint}."
                errors.append(LineError("url_mismatch", message, "url", number))
            elif line.method != "POST":
                errors.append(LineError("invalid_method", "The method must be POST.", "method", number))
            if line.custom_id in ids:
                message = f"The custom_id {line.custom_id!r} is used by more than one request."
                errors.append(LineError("duplicate_custom_id", message, "custom_id", number))
            ids[line.custom_id] = None
            if line.body.model not in models:
                models[line.body.model] = None
                errors.extend(_model_errors(line.body.model, next(iter(models)), find, number))
            if limits.enqueued_tokens is not None:
                input_tokens += _tokens(raw)
        if len(errors) >= MOST_ERRORS:
            break
    if not total:
        errors.append(LineError("empty_file", "The input file has no requests."))
    if errors:
        return Checked(errors=errors)
    return Checked(errors=[], model=next(iter(models)), input_tokens=input_tokens, ids=list(ids))


def read_lines(source: Path) -> Iterator[bytes]:
    """Lines without their newline; a binary file is split on 0x0A only."""
    with open(source, "rb", buffering=BUFFER) as file:
        for line in file:
            yield line[:-1] if line.endswith(b"\n") else line


def _line_error(error: Exception, number: int) -> LineError:
    if isinstance(error, msgspec.ValidationError):
        return LineError("invalid_request", f"This line is not a batch request: {error}.", None, number)
    return LineError("invalid_json_line", "This line is not parseable as valid JSON.", None, number)


def _model_errors(model: str, first: str, find: FindPersona, number: int) -> Iterator[LineError]:
    if find(model) is None:
        message = f"The provided model '{model}' is not supported by the Batch API."
        yield LineError("model_not_found", message, "body.model", number)
    if model != first:
        message = f"This line asks for {model!r}, the file began with {first!r}: one model per file."
        yield LineError("model_mismatch", message, "body.model", number)


def _tokens(raw: bytes) -> int:
    try:
        return wire.prompt_of(_full.decode(raw).body)[1]
    except (ValueError, RecursionError):
        return 0
