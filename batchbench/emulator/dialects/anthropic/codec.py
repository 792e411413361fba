"""Pure: turns the requests of a message batch into result lines."""

import msgspec

from batchbench.emulator.dialects.anthropic import wire
from batchbench.emulator.dialects.codec import BatchCodec
from batchbench.emulator.jobs.answers import ErrorInfo, LineResult
from batchbench.emulator.personas.interface import FindPersona

_line = msgspec.json.Decoder(wire.RequestLine)
_unchecked = msgspec.json.Decoder(wire.UncheckedLine)
_encode = msgspec.json.Encoder().encode


class AnthropicCodec(BatchCodec):
    """The codec of one message batch."""

    def __init__(self, batch: str, version: str, seed: int, find_persona: FindPersona) -> None:
        super().__init__(batch, 6, seed, find_persona)
        self._version = version

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
        model = self._persona(params.model)
        if model is None:
            return self._refuse(line.custom_id, wire.not_found(params.model))
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
        return LineResult(line.custom_id, encoded, True, usage.input_tokens, usage.output_tokens, text)

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
