"""Pure: the request and result formats of the OpenAI API, and the answer to one chat request."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from batchbench.emulator.jobs import tokens
from batchbench.emulator.jobs.answers import ErrorInfo, changed_reply, counted_input, fit
from batchbench.emulator.personas.interface import Persona, PersonaQuery, PersonaReply

ENDPOINT = "/v1/chat/completions"


class ContentPart(msgspec.Struct, frozen=True, gc=False):
    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True, gc=False):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None


class TemplateOptions(msgspec.Struct, frozen=True, gc=False):
    """What local servers pass to the chat template."""

    enable_thinking: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Body of a chat request. Parameters that personas ignore are not checked."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: int | None = None
    stream: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stop: msgspec.Raw | UnsetType = UNSET
    presence_penalty: msgspec.Raw | UnsetType = UNSET
    frequency_penalty: msgspec.Raw | UnsetType = UNSET
    logit_bias: msgspec.Raw | UnsetType = UNSET
    user: msgspec.Raw | UnsetType = UNSET
    store: msgspec.Raw | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    response_format: msgspec.Raw | UnsetType = UNSET
    tools: msgspec.Raw | UnsetType = UNSET
    tool_choice: msgspec.Raw | UnsetType = UNSET
    parallel_tool_calls: msgspec.Raw | UnsetType = UNSET
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateOptions | None = None
    service_tier: msgspec.Raw | UnsetType = UNSET
    modalities: msgspec.Raw | UnsetType = UNSET
    verbosity: msgspec.Raw | UnsetType = UNSET
    safety_identifier: msgspec.Raw | UnsetType = UNSET
    prompt_cache_key: msgspec.Raw | UnsetType = UNSET


class RequestLine(msgspec.Struct, frozen=True, gc=False):
    custom_id: str
    body: ChatRequest


class UncheckedLine(msgspec.Struct, frozen=True):
    """A request line with an unchecked body."""

    custom_id: str
    body: msgspec.Raw


class Alternative(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class Token(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    content: list[Token]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True, gc=False):
    role: str
    content: str | None
    refusal: str | None = None
    annotations: tuple[()] = ()
    reasoning_content: str | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, gc=False):
    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: str


class PromptDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


_PROMPT_DETAILS = PromptDetails()
_COMPLETION_DETAILS = CompletionDetails()


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = _PROMPT_DETAILS
    completion_tokens_details: CompletionDetails = _COMPLETION_DETAILS


class Completion(msgspec.Struct, frozen=True, gc=False):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    service_tier: str = "default"
    system_fingerprint: str = "fp_emulated00"


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every error; it always has all four keys."""

    error: ErrorBody


class Response(msgspec.Struct, frozen=True, gc=False):
    status_code: int
    request_id: str
    body: Completion | ErrorResponse


class RequestError(msgspec.Struct, frozen=True):
    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True, gc=False):
    id: str
    custom_id: str
    response: Response | None
    error: RequestError | None = None


UNANSWERED = {
    "expired": RequestError(
        "batch_expired", "This request could not be executed before the completion window expired."
    ),
    "cancelled": RequestError("batch_cancelled", "This request was not executed because the batch was cancelled."),
    "timeout": RequestError("request_timeout", "The underlying call to the model timed out."),
}

_chat = msgspec.json.Decoder(ChatRequest)


def error_body(info: ErrorInfo) -> ErrorResponse:
    return ErrorResponse(ErrorBody(info.message, info.type, info.param, info.code))


def read_chat(raw: bytes | msgspec.Raw) -> ChatRequest | ErrorInfo:
    """A chat request, or the provider's error message for it."""
    try:
        chat = _chat.decode(raw)
    except msgspec.ValidationError as error:
        return _explain(str(error))
    except (ValueError, RecursionError):
        return ErrorInfo(400, "We could not parse the JSON body of your request.", "invalid_request_error")
    return check(chat) or chat


def check(chat: ChatRequest) -> ErrorInfo | None:
    """The provider's error for parameters that are not allowed together."""
    if chat.max_tokens is not None and chat.max_completion_tokens is not None:
        return _invalid("max_tokens", "Set either 'max_tokens' or 'max_completion_tokens', not both.")
    if chat.top_logprobs is not None and not chat.logprobs:
        return _invalid("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
    if chat.stream:
        return _invalid("stream", "The emulator does not stream: remove 'stream'.", "unsupported_value")
    return None


def _invalid(param: str, message: str, code: str = "invalid_value") -> ErrorInfo:
    return ErrorInfo(400, message, "invalid_request_error", code, param)


def unknown_argument(name: str) -> ErrorInfo:
    return ErrorInfo(400, f"Unrecognized request argument supplied: {name}", "invalid_request_error")


def not_found(model: str) -> ErrorInfo:
    message = f"The model `{model}` does not exist or you do not have access to it."
    return ErrorInfo(404, message, "invalid_request_error", "model_not_found")


def prompt_of(chat: ChatRequest) -> tuple[str, int]:
    """The text of the last user message, and the prompt tokens of the whole conversation."""
    messages = chat.messages
    prompt = ""
    total = 0
    for message in messages:
        text = message.content
        if not isinstance(text, str):
            text = "".join([part.text for part in text]) if text else ""
        total += len(text) if text.isascii() else tokens.utf8_bytes(text)
        if message.role == "user":
            prompt = text
    return prompt, tokens.input_tokens(total, len(messages))


def complete(
    chat: ChatRequest, model: Persona, *, sample: str, seed: int, name: str, created: int, reply_fault: str = ""
) -> tuple[Completion, str]:
    """The answer to a chat request, and its billed text: the texts of all choices, joined."""
    prompt, prompt_tokens = prompt_of(chat)
    prompt_tokens = counted_input(reply_fault, prompt_tokens)
    if chat.seed is not None:
        sample = str(chat.seed)
    limit = chat.max_completion_tokens if chat.max_completion_tokens is not None else chat.max_tokens
    top_logprobs = (chat.top_logprobs or 0) if chat.logprobs else None
    query = PersonaQuery(chat.model, prompt, sample, seed, limit, top_logprobs)
    choice, text, used, thoughts = _choice(0, query, model, reply_fault)
    choices = [choice]
    for index in range(1, chat.n or 1):
        other = replace(query, sample=f"{sample}.{index}")
        choice, more, more_tokens, more_thoughts = _choice(index, other, model, reply_fault)
        choices.append(choice)
        text = f"{text}\n{more}"
        used += more_tokens
        thoughts += more_thoughts
    details = CompletionDetails(thoughts) if thoughts else _COMPLETION_DETAILS
    usage = Usage(prompt_tokens, used, prompt_tokens + used, completion_tokens_details=details)
    return Completion(name, "chat.completion", created, chat.model, choices, usage), text


def _choice(index: int, query: PersonaQuery, model: Persona, reply_fault: str) -> tuple[Choice, str, int, int]:
    """One answer, its text, its tokens, and how many of them are thoughts outside of the text."""
    reply = model(query)
    finish = "stop"
    if reply_fault:
        reply, finish = changed_reply(reply_fault, reply)
    fitted = fit(reply, query.max_tokens)
    text = fitted.text
    if fitted.cut:
        finish = "length"
    logprobs = None if query.top_logprobs is None else _logprobs(text, reply, query.top_logprobs)
    content = None if reply.refusal else text
    if reply.reasoning is None:
        message = AssistantMessage("assistant", content, text if reply.refusal else None)
    else:
        if not text and len(query.prompt) % 2:  # servers send null or an empty string
            content = None
        shown = tokens.truncate(reply.reasoning, fitted.thoughts)
        message = AssistantMessage("assistant", content, text if reply.refusal else None, reasoning_content=shown)
    return Choice(index, message, logprobs, finish), text, fitted.used, fitted.thoughts


def _logprobs(text: str, reply: PersonaReply, top: int) -> Logprobs:
    """One entry per word. Only the first word has alternatives; the other words have probability 1."""
    content: list[Token] = []
    for k, word in enumerate(tokens.split(text)):
        likely = (reply.top_logprobs or [(word, 0.0)]) if k == 0 else [(word, 0.0)]
        # The provider reports -9999 for a token that is not among the most likely tokens.
        chosen = next((value for token, value in likely if token == word), -9999.0)
        alternatives = [Alternative(token, value, list(token.encode())) for token, value in likely[:top]]
        content.append(Token(word, chosen, list(word.encode()), alternatives))
    return Logprobs(content)


def _explain(reason: str) -> ErrorInfo:
    """The provider's error for a body that does not decode."""
    if found := re.search(r"missing required field `(\w+)`", reason):
        param = found.group(1)
        return ErrorInfo(
            400, f"Missing required parameter: '{param}'.", "invalid_request_error", "missing_required_parameter", param
        )
    if found := re.search(r"unknown field `(\w+)`", reason):
        return unknown_argument(found.group(1))
    where = re.search(r"at `\$\.?([^`]*)`", reason)
    param = where.group(1) if where else ""
    return ErrorInfo(
        400,
        f"Invalid '{param}': {reason.partition(' - ')[0]}.",
        "invalid_request_error",
        "invalid_value" if re.search(r"[<>]=|of length", reason) else "invalid_type",
        param or None,
    )
