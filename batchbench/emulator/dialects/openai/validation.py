"""Validates the input file of an OpenAI batch, as the provider does after it has created the batch.

A worker thread reads the file once and keeps only the custom ids in memory.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.jobs.runner import Stopped
from batchbench.emulator.ledger.events import LineError
from batchbench.emulator.personas.interface import FindPersona
from batchbench.emulator.server.limits import EmulatorLimits

BUFFER = 1 << 20
MAX_ERRORS = 100


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of an invalid file, or the properties of a valid one."""

    errors: list[LineError]
    model: str = ""
    input_tokens: int = 0
    ids: list[str] = []


class _ModelOnly(msgspec.Struct, gc=False):
    model: str


class _Envelope(msgspec.Struct, gc=False):
    custom_id: str
    method: str
    url: str
    body: _ModelOnly


_envelope = msgspec.json.Decoder(_Envelope)
_line = msgspec.json.Decoder(wire.RequestLine)


def validate(
    source: Path, endpoint: str, limits: EmulatorLimits, find_persona: FindPersona, stop: threading.Event
) -> Validation:
    """Check an input file; stops after the first 100 errors."""
    if source.stat().st_size > limits.bytes:
        message = f"The batch input file is larger than the {limits.bytes} maximum."
        return Validation(errors=[LineError("file_too_large", message)])
    checker = _Checker(endpoint, find_persona)
    requests = input_tokens = 0
    for number, raw in enumerate(_read_lines(source), 1):
        if number % 512 == 0 and stop.is_set():
            raise Stopped
        if not raw.strip():
            continue
        requests += 1
        if requests > limits.requests:
            message = f"The batch input file contains more than {limits.requests} requests."
            return Validation(errors=[LineError("too_many_tasks", message)])
        checker.check(raw, number)
        if len(checker.errors) >= MAX_ERRORS:
            break
        if limits.enqueued_tokens is not None:
            input_tokens += _input_tokens(raw)
    if not requests:
        checker.errors.append(LineError("empty_file", "The input file has no requests."))
    if checker.errors:
        return Validation(errors=checker.errors)
    model = next(iter(checker.models))
    return Validation(errors=[], model=model, input_tokens=input_tokens, ids=list(checker.ids))


class _Checker:
    """Collects the errors, custom ids and models of the lines of one file."""

    def __init__(self, endpoint: str, find_persona: FindPersona) -> None:
        self._endpoint = endpoint
        self._find_persona = find_persona
        self.errors: list[LineError] = []
        self.ids: dict[str, None] = {}
        self.models: dict[str, None] = {}

    def check(self, raw: bytes, number: int) -> None:
        try:
            line = _envelope.decode(raw)
        except msgspec.ValidationError as error:
            self._add("invalid_request", f"This line is not a batch request: {error}.", None, number)
            return
        except (ValueError, RecursionError):
            self._add("invalid_json_line", "This line is not parseable as valid JSON.", None, number)
            return
        if line.url != self._endpoint:
            message = f"The URL provided for this request does not match the batch endpoint {self._endpoint}."
            self._add("url_mismatch", message, "url", number)
        elif line.method != "POST":
            self._add("invalid_method", "The method must be POST.", "method", number)
        if line.custom_id in self.ids:
            message = f"The custom_id {line.custom_id!r} is used by more than one request."
            self._add("duplicate_custom_id", message, "custom_id", number)
        self.ids[line.custom_id] = None
        if line.body.model not in self.models:
            self._add_model(line.body.model, number)

    def _add_model(self, model: str, number: int) -> None:
        self.models[model] = None
        if self._find_persona(model) is None:
            message = f"The provided model '{model}' is not supported by the Batch API."
            self._add("model_not_found", message, "body.model", number)
        first = next(iter(self.models))
        if model != first:
            message = f"This line uses model {model!r}, the first line {first!r}: use one model per file."
            self._add("model_mismatch", message, "body.model", number)

    def _add(self, code: str, message: str, param: str | None, line: int) -> None:
        self.errors.append(LineError(code, message, param, line))


def _read_lines(source: Path) -> Iterator[bytes]:
    """Lines without their newline; in binary mode, only 0x0A ends a line."""
    with open(source, "rb", buffering=BUFFER) as file:
        for line in file:
            yield line[:-1] if line.endswith(b"\n") else line


def _input_tokens(raw: bytes) -> int:
    try:
        return wire.prompt_of(_line.decode(raw).body)[1]
    except (ValueError, RecursionError):
        return 0
