"""Pure: from the input lines of an OpenAI batch to its result lines, fast."""

from hashlib import blake2b

import msgspec

from batchbench.emulator.dialects.openai import wire
from batchbench.emulator.jobs import tokens
from batchbench.emulator.jobs.answers import Problem, Result
from batchbench.emulator.personas.interface import FindPersona, Persona, PersonaQuery

_NUMBERS = (900_000_000_000_001, 900_000_000_000_002, 900_000_000_000_003)  # stand for token counts in a template

_line = msgspec.json.Decoder(wire.Line)
_loose = msgspec.json.Decoder(wire.LooseLine)
_encode = msgspec.json.Encoder().encode


class Codec:
    """Turns the input lines of one batch into result lines."""

    def __init__(self, batch: str, created: float, seed: int, find: FindPersona) -> None:
        self._stem = blake2b(batch.encode(), digest_size=11).hexdigest()
        self._count = 0
        self._created = int(created)
        self._seed = seed
        self._find = find
        self._personas: dict[str, Persona | None] = {}
        self._templates: dict[str, bytes] = {}

    def answer(self, raw: bytes, twist: str = "") -> Result:
        try:
            line = _line.decode(raw)
        except msgspec.ValidationError:
            loose = _loose.decode(raw)
            read = wire.read_chat(loose.body)
            problem = read if isinstance(read, Problem) else Problem(400, "Invalid body.", "invalid_request_error")
            return self._refuse(loose.custom_id, problem)
        chat = line.body
        if (chat.max_tokens is not None or chat.top_logprobs is not None or chat.stream) and (odd := wire.check(chat)):
            return self._refuse(line.custom_id, odd)
        model = self._personas.get(chat.model) or self._persona(chat.model)
        if model is None:
            return self._refuse(line.custom_id, wire.not_found(chat.model))
        if not twist and len(chat.messages) == 1 and chat.seed is None and chat.n is None and not chat.logprobs:
            content = chat.messages[0].content
            if isinstance(content, str) and content.isascii():
                return self._plain(line.custom_id, chat, content, model)
        name = self._name()
        body, text = wire.complete(
            chat,
            model,
            sample=line.custom_id.partition("-")[2] or "0",
            seed=self._seed,
            name="chatcmpl-" + name[-24:],
            created=self._created,
            twist=twist,
        )
        output = wire.OutputLine("batch_req_" + name, line.custom_id, wire.Response(200, name, body))
        usage = body.usage
        return Result(line.custom_id, _encode(output), True, usage.prompt_tokens, usage.completion_tokens, text)

    def _plain(self, custom_id: str, chat: wire.Chat, content: str, model: Persona) -> Result:
        """What `answer` gives for one ASCII message without extras, which is nearly every line there is."""
        name = self._name()
        most = chat.max_completion_tokens if chat.max_completion_tokens is not None else chat.max_tokens
        prompt = content if chat.messages[0].role == "user" else ""
        reply = model(PersonaQuery(chat.model, prompt, custom_id.partition("-")[2] or "0", self._seed, most, None))
        text = reply.text
        used = tokens.output_tokens(text)
        finish = b'"stop"'
        if most is not None and used > most:
            text, used, finish = tokens.cut(text, most), most, b'"length"'
        asked = tokens.input_tokens(len(content), 1)
        quoted = _encode(text)
        said, refusal = (b"null", quoted) if reply.refusal else (quoted, b"null")
        encoded = name.encode()
        template = self._templates.get(chat.model) or self._template(chat.model)
        parts = (
            encoded,
            _encode(custom_id),
            encoded,
            encoded[-24:],
            said,
            refusal,
            finish,
            asked,
            used,
            asked + used,
        )
        return Result(custom_id, template % parts, True, asked, used, text)

    def _template(self, model: str) -> bytes:
        """The line of an answer with slots for what differs between lines, taken from the real encoding of one."""
        choice = wire.Choice(0, wire.Said("assistant", "@said@", "@refusal@"), None, "@finish@")
        usage = wire.Usage(*_NUMBERS)
        body = wire.Completion("chatcmpl-@short@", "chat.completion", self._created, model, [choice], usage)
        line = _encode(wire.OutputLine("batch_req_@name@", "@id@", wire.Response(200, "@name@", body)))
        line = line.replace(b"%", b"%%")
        for word in (b'"@id@"', b'"@said@"', b'"@refusal@"', b'"@finish@"', b"@name@", b"@short@"):
            line = line.replace(word, b"%b")
        for number in _NUMBERS:
            line = line.replace(b"%d" % number, b"%d")
        self._templates[model] = line
        return line

    def unanswered(self, raw: bytes, why: str) -> Result:
        """The line of a request that was not asked: expired, cancelled, timeout."""
        custom_id = _loose.decode(raw).custom_id
        line = wire.OutputLine("batch_req_" + self._name(), custom_id, None, wire.UNANSWERED[why])
        return Result(custom_id, _encode(line), False)

    def problem(self, raw: bytes, problem: Problem) -> Result:
        """The line of a request that the provider refused or failed to serve."""
        return self._refuse(_loose.decode(raw).custom_id, problem)

    def _refuse(self, custom_id: str, problem: Problem) -> Result:
        name = self._name()
        response = wire.Response(problem.status, name, wire.refused(problem))
        return Result(custom_id, _encode(wire.OutputLine("batch_req_" + name, custom_id, response)), False)

    def _name(self) -> str:
        # The order of the lines is fixed, so a second run of a batch gives every line the same name.
        self._count += 1
        return f"{self._stem}{self._count:010x}"

    def _persona(self, model: str) -> Persona | None:
        if model not in self._personas:
            self._personas[model] = self._find(model)
        return self._personas[model]
