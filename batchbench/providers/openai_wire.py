"""Pure: the formats of OpenAI's replies. Fields that may be null or absent have a default.

Fields are in the order in which OpenAI sends them, because that is decoded fastest.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType


class File(msgspec.Struct):
    """An uploaded file."""

    id: str
    bytes: int | None = None


class BatchError(msgspec.Struct):
    """Why a batch, or a line of its input file, was rejected."""

    code: str | int | None = None
    message: str | None = None
    line: int | None = None


class BatchErrors(msgspec.Struct):
    """The errors of a batch."""

    data: list[BatchError] | None = None


class Counts(msgspec.Struct):
    """Requests of a batch."""

    total: int | None = None
    completed: int | None = None
    failed: int | None = None


class Batch(msgspec.Struct):
    """A batch. Another type in any field is an error: a misread batch might be bought again."""

    id: str
    status: str
    created_at: Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # not NaN either
    expires_at: float | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: BatchErrors | list[BatchError] | None = None
    request_counts: Counts | None = None
    metadata: dict[str, Any] | None = None


class Model(msgspec.Struct):
    """A model, as the provider describes it."""

    id: str | None = None
    shutdown_date: str | None = None


class Content(msgspec.Struct, gc=False):
    """A part of a message."""

    NEEDED: ClassVar = ("type", "text", "refusal")
    type: str
    text: str | UnsetType | None = UNSET
    refusal: str | None = None


class Message(msgspec.Struct, gc=False):
    """A model's reply. Servers put a model's thoughts into one of two fields, which are never read as the answer."""

    NEEDED: ClassVar = ("content",)
    content: str | list[Content | str] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class Top(msgspec.Struct, gc=False):
    """An alternative for a token."""

    token: str
    logprob: float


class Token(msgspec.Struct, gc=False):
    """A token of a reply."""

    top_logprobs: list[Top] | None = None


class Logprobs(msgspec.Struct, gc=False):
    """The tokens of a reply."""

    content: list[Token] | None = None


class Choice(msgspec.Struct, gc=False):
    """One of the replies to a request."""

    NEEDED: ClassVar = ("message",)
    message: Message | UnsetType | None = UNSET
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    error: Any = None  # why it ended early; not OpenAI's


class Details(msgspec.Struct, gc=False):
    """What output tokens were used for."""

    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """The tokens of a request."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    completion_tokens_details: Details | None = None


class Completion(msgspec.Struct, gc=False, kw_only=True):
    """The replies to a request."""

    NEEDED: ClassVar = ("choices",)
    model: str | None = None
    choices: list[Choice] | None
    usage: Usage | None = None
    error: Any = None  # some servers report errors with a status of success


class Response(msgspec.Struct, gc=False):
    """The response to one request of a batch."""

    status_code: int
    body: Any = None


class Result(msgspec.Struct, gc=False):
    """A result line of any kind."""

    custom_id: str
    response: Any = None
    error: Any = None


class GoodResponse(msgspec.Struct, gc=False):
    """The response to a request that was answered."""

    status_code: Literal[200]
    body: Completion


class Answered(msgspec.Struct, gc=False):
    """The result line of a request that was answered."""

    custom_id: str
    response: GoodResponse


class Metadata(msgspec.Struct):
    """What a gateway adds to an error."""

    reasons: list[Any] | None = None


class Error(msgspec.Struct):
    """An error in OpenAI's format."""

    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    metadata: Metadata | None = None


decode_answered = msgspec.json.Decoder(Answered).decode_lines
decode_any = msgspec.json.Decoder().decode_lines
