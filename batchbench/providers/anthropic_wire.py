"""Pure: the formats of Anthropic's replies. Fields that may be null or absent have a default."""

from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

Moment = Annotated[datetime, msgspec.Meta(tz=True)]  # must have a time zone


class Counts(msgspec.Struct):
    """Requests of a batch."""

    processing: int | None = None
    succeeded: int | None = None
    errored: int | None = None
    canceled: int | None = None
    expired: int | None = None

    @property
    def total(self) -> int:
        """All requests."""
        done = (self.succeeded or 0) + (self.errored or 0) + (self.canceled or 0) + (self.expired or 0)
        return done + (self.processing or 0)


class Batch(msgspec.Struct):
    """A batch. Another type in any field is an error: a misread batch might be bought again."""

    id: str
    processing_status: str
    created_at: Moment
    expires_at: Moment | None = None
    request_counts: Counts | None = None
    results_url: str | None = None


class Support(msgspec.Struct):
    """Whether a model has a capability."""

    supported: bool | None = None


class ThinkingSupport(msgspec.Struct):
    """Whether a model thinks, and in which ways."""

    types: dict[str, Any] | None = None


class Capabilities(msgspec.Struct):
    """What a model can do."""

    batch: Support | None = None
    thinking: ThinkingSupport | None = None
    effort: dict[str, Any] | None = None


class Model(msgspec.Struct):
    """A model, as the provider describes it."""

    id: str | None = None
    capabilities: Capabilities | None = None
    max_tokens: int | None = None
    retires_at: str | None = None


class Block(msgspec.Struct, gc=False):
    """A part of a message: text, or thoughts, which are never read as the answer."""

    NEEDED: ClassVar = ("type", "text")
    type: str
    text: str | UnsetType | None = UNSET


class Details(msgspec.Struct, gc=False):
    """What output tokens were used for."""

    thinking_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Usage(msgspec.Struct, gc=False):
    """The tokens of a request; the input is the sum of three counts."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: Details | None = None


class Message(msgspec.Struct, gc=False, kw_only=True):
    """A model's reply."""

    NEEDED: ClassVar = ("content",)
    model: str | None = None
    content: list[Block] | str | None
    stop_reason: str | None = None
    usage: Usage | None = None


class ErrorDetails(msgspec.Struct):
    """More about an error."""

    error_code: str | None = None


class Error(msgspec.Struct):
    """An error."""

    type: str | None = None
    message: str | None = None
    details: ErrorDetails | None = None


class Failure(msgspec.Struct):
    """The body of an error reply, or an error without this wrapper."""

    error: Error | None = None
    type: str | None = None
    message: str | None = None


class Result(msgspec.Struct, gc=False):
    """What became of a request; the message, or the failure."""

    type: str | None = None
    message: Message | None = None
    error: Failure | None = None


class Entry(msgspec.Struct, gc=False):
    """A result line."""

    custom_id: str
    result: Result


decode_entries = msgspec.json.Decoder(Entry).decode_lines
decode_any = msgspec.json.Decoder().decode_lines
