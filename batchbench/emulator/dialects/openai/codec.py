"""Pure: turns the input lines of an OpenAI batch into result lines, fast."""

import msgspec

from batchbench.emulator.dialects.codec import BatchCodec
from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.dialects.openai.reasoning import as_family
from batchbench.emulator.families.table import ChatFamily, LocalFamily, chat_family
from batchbench.emulator.jobs import tokens
from batchbench.emulator.jobs.answers import ErrorInfo, LineResult, fit
from batchbench.emulator.personas.interface import FindPersona, Persona, PersonaQuery

_NUMBERS = (
    900_000_000_000_001,
    900_000_000_000_002,
    900_000_000_000_003,
    900_000_000_000_004,
)  # placeholders for token counts

_line = msgspec.json.Decoder(wire.RequestLine)
_unchecked = msgspec.json.Decoder(wire.UncheckedLine)
_encode = msgspec.json.Encoder().encode


class OpenAICodec(BatchCodec):
    """The codec of one OpenAI batch."""

    def __init__(self, batch: str, created: float, seed: int, find_persona: FindPersona) -> None:
        super().__init__(batch, 11, seed, find_persona)
        self._created = int(created)
        self._templates: dict[str, bytes] = {}
        self._families: dict[str, ChatFamily | None] = {}

    def answer(self, raw: bytes, reply_fault: str = "") -> LineResult:
        try:
            line = _line.decode(raw)
        except msgspec.ValidationError:
            unchecked = _unchecked.decode(raw)
            read = wire.read_chat(unchecked.body)
            invalid = ErrorInfo(400, "Invalid body.", "invalid_request_error")
            return self._refuse(unchecked.custom_id, read if isinstance(read, ErrorInfo) else invalid)
        chat = line.body
        special = chat.max_tokens is not None or chat.top_logprobs is not None or chat.stream
        if special and (info := wire.check(chat)):
            return self._refuse(line.custom_id, info)
        model = self._personas.get(chat.model) or self._persona(chat.model)
        if model is None:
            return self._refuse(line.custom_id, wire.not_found(chat.model))
        family = self._families[chat.model]
        if family is not None or chat.chat_template_kwargs is not None:
            found = as_family(chat, model, family)
            if isinstance(found, ErrorInfo):
                return self._refuse(line.custom_id, found)
            model = found
        fast = not reply_fault and not isinstance(family, LocalFamily)
        if fast and len(chat.messages) == 1 and chat.seed is None and chat.n is None and not chat.logprobs:
            content = chat.messages[0].content
            if isinstance(content, str) and content.isascii():
                return self._fast_answer(line.custom_id, chat, content, model)
        name = self._next_id()
        body, text = wire.complete(
            chat,
            model,
            sample=line.custom_id.partition("-")[2] or "0",
            seed=self._seed,
            name="chatcmpl-" + name[-24:],
            created=self._created,
            reply_fault=reply_fault,
        )
        output = wire.OutputLine("batch_req_" + name, line.custom_id, wire.Response(200, name, body))
        usage = body.usage
        thoughts = usage.completion_tokens_details.reasoning_tokens
        used = usage.completion_tokens
        return LineResult(line.custom_id, _encode(output), True, usage.prompt_tokens, used, text, thoughts)

    def _fast_answer(self, custom_id: str, chat: wire.ChatRequest, content: str, model: Persona) -> LineResult:
        """The same as `answer`, for one ASCII message without special parameters. Nearly all lines are like this."""
        name = self._next_id()
        limit = chat.max_completion_tokens if chat.max_completion_tokens is not None else chat.max_tokens
        prompt = content if chat.messages[0].role == "user" else ""
        reply = model(PersonaQuery(chat.model, prompt, custom_id.partition("-")[2] or "0", self._seed, limit, None))
        text, thoughts = reply.text, reply.thoughts
        used = tokens.output_tokens(text) + thoughts
        finish = b'"stop"'
        if limit is not None and used > limit:
            fitted = fit(reply, limit)
            text, used, thoughts, finish = fitted.text, limit, fitted.thoughts, b'"length"'
        prompt_tokens = tokens.input_tokens(len(content), 1)
        quoted = _encode(text)
        message, refusal = (b"null", quoted) if reply.refusal else (quoted, b"null")
        encoded = name.encode()
        template = self._templates.get(chat.model) or self._template(chat.model)
        parts = (
            encoded,
            _encode(custom_id),
            encoded,
            encoded[-24:],
            message,
            refusal,
            finish,
            prompt_tokens,
            used,
            prompt_tokens + used,
            thoughts,
        )
        return LineResult(custom_id, template % parts, True, prompt_tokens, used, text, thoughts)

    def _template(self, model: str) -> bytes:
        """An encoded result line with a placeholder for each value that differs between answers."""
        choice = wire.Choice(0, wire.AssistantMessage("assistant", "@message@", "@refusal@"), None, "@finish@")
        details = wire.CompletionDetails(_NUMBERS[3])
        usage = wire.Usage(*_NUMBERS[:3], completion_tokens_details=details)
        body = wire.Completion("chatcmpl-@short@", "chat.completion", self._created, model, [choice], usage)
        line = _encode(wire.OutputLine("batch_req_@name@", "@id@", wire.Response(200, "@name@", body)))
        line = line.replace(b"%", b"%%")
        for slot in (b'"@id@"', b'"@message@"', b'"@refusal@"', b'"@finish@"', b"@name@", b"@short@"):
            line = line.replace(slot, b"%b")
        for number in _NUMBERS:
            line = line.replace(b"%d" % number, b"%d")
        self._templates[model] = line
        return line

    def _persona(self, model: str) -> Persona | None:
        self._families[model] = chat_family(model)
        return super()._persona(model)

    def unanswered(self, raw: bytes, reason: str) -> LineResult:
        custom_id = _unchecked.decode(raw).custom_id
        line = wire.OutputLine("batch_req_" + self._next_id(), custom_id, None, wire.UNANSWERED[reason])
        return LineResult(custom_id, _encode(line), False)

    def error(self, raw: bytes, info: ErrorInfo) -> LineResult:
        return self._refuse(_unchecked.decode(raw).custom_id, info)

    def _refuse(self, custom_id: str, info: ErrorInfo) -> LineResult:
        name = self._next_id()
        response = wire.Response(info.status, name, wire.error_body(info))
        return LineResult(custom_id, _encode(wire.OutputLine("batch_req_" + name, custom_id, response)), False)
