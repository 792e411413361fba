"""Pure: turns the requests of a message batch into result lines."""

import msgspec

from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.dialects.anthropic.thinking import as_family
from batchbench.emulator.dialects.codec import BatchCodec
from batchbench.emulator.families.table import ClaudeFamily, claude_family
from batchbench.emulator.jobs.answers import ErrorInfo, LineResult
from batchbench.emulator.personas.interface import FindPersona, Persona

_line = msgspec.json.Decoder(wire.RequestLine)
_unchecked = msgspec.json.Decoder(wire.UncheckedLine)
_encode = msgspec.json.Encoder().encode


class AnthropicCodec(BatchCodec):
    """The codec of one message batch."""

    def __init__(self, batch: str, version: str, seed: int, find_persona: FindPersona) -> None:
        super().__init__(batch, 6, seed, find_persona)
        self._version = version
        self._families: dict[str, ClaudeFamily | None] = {}

    def answer(self, raw: bytes, reply_fault: str = "") -> LineResult:
        try:
            line = _line.decode(raw)
        except msgspec.ValidationError:
            unchecked = _unchecked.decode(raw)
            read = wire.read_params(unchecked.params, self._version)
            info = read if isinstance(read, ErrorInfo) else ErrorInfo(400, "Invalid request.", "invalid_request_error")
            return self._refuse(unchecked.custom_id, info)
        params = line.params
        if refused := wire.check(params, self._version, in_batch=True):
            return self._refuse(line.custom_id, refused)
        persona = self._personas.get(params.model) or self._persona(params.model)
        if persona is None:
            return self._refuse(line.custom_id, wire.not_found(params.model))
        family = self._families[params.model]
        model = persona if family is None else as_family(params, persona, family)
        if isinstance(model, ErrorInfo):
            return self._refuse(line.custom_id, model)
        message, text = wire.reply_to(
            params,
            model,
            sample=line.custom_id.partition("-")[2] or "0",
            seed=self._seed,
            name="msg_01" + self._next_id(),
            tier="batch",
            reply_fault=reply_fault,
        )
        usage = message.usage
        encoded = _encode(wire.ResultLine(line.custom_id, wire.SucceededResult(message)))
        thoughts = usage.output_tokens_details.thinking_tokens if usage.output_tokens_details else 0
        return LineResult(line.custom_id, encoded, True, usage.input_tokens, usage.output_tokens, text, thoughts)

    def _persona(self, model: str) -> Persona | None:
        self._families[model] = claude_family(model)
        return super()._persona(model)

    def unanswered(self, raw: bytes, reason: str) -> LineResult:
        custom_id = _unchecked.decode(raw).custom_id
        if reason == "timeout":
            return self._refuse(custom_id, ErrorInfo(504, "Request timed out", "timeout_error"))
        line = wire.ResultLine(custom_id, wire.ExpiredResult() if reason == "expired" else wire.CanceledResult())
        return LineResult(custom_id, _encode(line), False)

    def error(self, raw: bytes, info: ErrorInfo) -> LineResult:
        return self._refuse(_unchecked.decode(raw).custom_id, info)

    def _refuse(self, custom_id: str, info: ErrorInfo) -> LineResult:
        error = wire.ErroredResult(wire.error_body(info, "req_011C" + self._next_id()))
        return LineResult(custom_id, _encode(wire.ResultLine(custom_id, error)), False)
