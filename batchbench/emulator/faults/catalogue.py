"""Every fault that the emulator can inject: its name, its kind, the calls it can affect, and a description.

Uses the standard library only, so that `batchbench emulate --list-faults` starts fast.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from batchbench.emulator.faults.refusals import FOREIGN_ERRORS, RATE_LIMITS, REFUSALS, Dialect

Kind = Literal["before", "after", "late", "change", "download", "view", "list", "batch", "upload", "line"]

CALLS = (
    "upload",  # POST /files
    "files",  # GET /files
    "file",  # GET /files/{id}
    "content",  # GET /files/{id}/content
    "results",  # GET /messages/batches/{id}/results
    "delete",  # DELETE a file or a message batch
    "create",  # POST a batch
    "poll",  # GET a batch
    "list",  # GET batches
    "cancel",  # POST .../cancel
    "chat",  # POST /chat/completions
    "messages",  # POST /messages
    "count",  # POST /messages/count_tokens
    "models",  # GET /models
)
DOWNLOADS = ("content", "results")
ANSWERED = ("chat", "messages")  # synchronous calls to a model


class Fault(NamedTuple):
    name: str
    kind: Kind
    calls: tuple[str, ...]  # the calls that it can affect; the default of the rule's `on`
    description: str
    dialect: Dialect | None = None
    seconds: float = 0.0  # default of the rule's `seconds`
    also: tuple[str, ...] = ()  # more calls, which it affects only if the rule's `on` names them
    by_key: bool = False  # the share `p` is a share of the keys: a key is affected always or never


# Replies that replace the real reply. Each makes two faults: the server does not act, or it has acted.
REPLIES = {
    "408": "status 408",
    "409": "status 409",
    "500": "status 500 with the dialect's body",
    "502": "status 502 with a proxy's HTML page",
    "503": "status 503 (server_is_overloaded)",
    "504": "status 504 with the dialect's body",
    "520": "status 520 with a CDN's HTML page",
    "529": "status 529 (overloaded_error)",
    "html": "status 200 with an HTML page",
    "empty": "status 200 with an empty body",
    "null": "status 200 with the body `null`",
    "other-json": "status 200 with JSON of another type",
    "event-stream": "status 200 with an event stream",
    "reset": "connection reset, no reply",
    "close": "connection closed, no reply",
    "hang": "no reply for `seconds` of virtual time, then the connection closes",
    "bad-status-line": "a status line that is not HTTP",
    "http09": "a body without any status line or header",
    "huge-header": "one header of 100 KB",
    "header-bomb": "20,000 headers",
    "extra-bytes": "a valid empty reply, followed by bytes of a second reply",
}

CHANGED = {
    "status-201": "the right reply with status 201",
    "status-202": "the right reply with status 202",
    "gzip": "the right reply, compressed with gzip although the client asked for identity",
    "slow-reply": "the right reply, sent after `seconds` of virtual time",
}

_DOWNLOADS = {
    "redirect-download": "redirect with status 302 to another host name, which takes no key and refuses one",
    "cut-length": "half of the body, with the full Content-Length",
    "cut-chunked": "a chunked body without its last chunk",
    "cut-line": "no Content-Length, the connection closes after a whole line",
    "cut-mid-line": "no Content-Length, the connection closes inside a line",
    "cut-utf8": "no Content-Length, the connection closes inside a character",
    "gzip-cut": "the first half of a gzip stream",
    "gzip-crc": "a gzip stream with a wrong checksum",
    "gzip-fake": "Content-Encoding: gzip on plain bytes",
    "gzip-double": "gzip inside gzip, with one Content-Encoding: gzip",
    "brotli-fake": "Content-Encoding: br on plain bytes, not requested",
    "gzip-bomb": "1 GiB of spaces in 1 MB of gzip",
    "endless": "a body that never ends",
    "huge-length": "a Content-Length of 1 TB",
    "slow": "one byte every 0.3 s",
    "stall": "headers, then no bytes for `seconds` of virtual time",
    "range-ignored": "answers a Range request with 200 and the whole file",
    "range-416": "answers a Range request with 416",
    "range-wrong": "answers a Range request with the wrong bytes",
}

_VIEWS = {
    "status-unknown": "an unknown status",
    "status-capitalised": "the status with a capital letter",
    "status-backwards": "a finished batch is shown as in progress",
    "poll-404": "the batch is not found",
    "counts-zero": "all request counts are 0",
    "counts-contradict": "request counts that contradict the results",
    "output-null": "finished, but the result file ids are null",
    "output-empty": "finished, but the result file ids are empty strings",
    "output-late": "result file ids appear `seconds` of virtual time after the end",
    "results-expired": "the results are deleted, as after their expiry",
    "results-elsewhere": "`results_url` has another path on the same host, and the usual path is not found",
    "errors-data-null": "`errors.data` is null",
}

_LISTS = {
    "list-lag": "batches younger than `seconds` of virtual time are missing from the listing",
    "list-stale": "the listing is sent `seconds` of real time after it was made",
    "list-repeat": "every cursor gives the first page again",
    "list-duplicates": "rows of the previous page are repeated",
    "list-empty-more": "an empty page with has_more = true",
    "list-cursor-gone": "the cursor is refused as unknown",
    "list-envelope": "rows under `value` instead of `data`",
    "list-oldest-first": "the oldest batch comes first",
    "list-has-more-null": "has_more is null instead of false",
}

_BATCHES = {
    "validation-failed": "the batch fails in validation, with errors in its first lines",
    "token-limit": "the batch fails with token_limit_exceeded (Limit: 2,000,000 enqueued tokens)",
    "token-limit-azure": "the batch fails with token_limit_exceeded (configured limit of 30K)",
    "expire-half": "half of the requests are answered, the others expire `seconds` after creation",
    "expire-none": "all requests expire `seconds` after creation, without a result file",
    "cancelled-elsewhere": "another user cancels the batch `seconds` after creation; half of it is answered",
    "deleted-elsewhere": "another user deletes the batch as soon as it is accepted",
    "stuck": "the batch stays in progress, even after its expiry",
    "dup-accept": "one create makes two batches",
    "foreign": "another user creates a batch of the same size at the same time",
}

_UPLOADS = {
    "upload-bytes": "the file object reports fewer bytes than were sent",
    "upload-cut": "the connection closes during the upload",
    "file-quota": "refused: the file storage is full",
}

_LINES = {
    "line-malformed": "the first half of the line",
    "line-nan": "NaN as a JSON value",
    "line-bom": "a byte order mark before the line",
    "line-blank": "a blank line before the line",
    "line-crlf": "CR LF at the end of the line",
    "line-trailing": "text after the JSON",
    "line-invalid-utf8": "bytes that are not UTF-8 in the answer",
    "line-surrogate": "an escaped lone surrogate in the answer",
    "line-u2028": "U+2028, U+2029 and U+0085 in the answer",
    "line-nul": "a NUL character in the answer",
    "line-ansi": "terminal escape sequences in the answer",
    "line-duplicate": "the line twice",
    "line-conflict": "the line twice, with different answers",
    "line-duplicate-key": "two custom_id keys in one line",
    "line-missing": "no line, although the request was answered and billed",
    "line-unknown-id": "an unknown custom_id",
    "line-foreign-id": "a custom_id of another submission",
    "line-out-of-range": "a custom_id with the right nonce and a row that does not exist",
    "line-swapped": "the custom_ids of two lines are swapped",
    "line-both": "the custom_id is in the output file and in the error file",
    "line-policy": "refused by a content policy, not billed",
    "line-huge": "an answer of `value` bytes (default: 20 MB)",
    "line-nested": "a field nested 100,000 deep",
    "line-huge-integer": "an integer of 5,000 digits",
    "line-credit": "an error line: the credit balance is too low",
    "line-wrapped": "the whole line inside another object",
    "line-status-0": "status_code 0",
    "line-null-id": "custom_id null",
    "line-timeout": "an error line: the model timed out",
    "line-500": "an error line: the server failed",
    "line-429": "an error line: rate limited",
}

_ANSWERS = {  # in result lines, and with `on` in replies to synchronous calls
    "line-refusal": "the model refuses",
    "line-content-filter": "stopped by a content filter",
    "line-empty": "an empty answer",
    "line-text-null": "an answer whose text is null",
    "line-thoughts-only": "the thoughts use up the tokens, and no text is left",
    "line-reasoning-only": "thoughts but no text, although the model stopped by itself",
    "line-finish-error": "finish_reason `error` and the first half of the answer",
    "line-error-200": "status 200 with an error instead of an answer, not billed",
    "line-tool-call": "a tool call instead of text",
    "line-max-tokens": "the answer is cut by the token limit",
    "line-endless": "the answer goes on until the token limit cuts it",
    "line-input-twice": "the provider counts and bills twice the input tokens",
    "line-other-model": "the answer names another model",
    "line-choices-many": "three choices (OpenAI) or text blocks (Anthropic)",
    "line-choices-none": "no choice (OpenAI) or no block (Anthropic)",
    "line-content-list": "content as a list instead of a string, or the other way round",
    "line-thinking": "a thinking block before the text",
    "line-renamed": "`content` is called `contents`",
    "line-top-logprobs-null": "top_logprobs is null in every token",
    "line-number-text": "token counts as strings",
    "line-usage-absent": "no usage",
    "line-usage-negative": "negative usage",
    "line-usage-huge": "usage of 10**12 tokens",
    "line-usage-null": "usage is null",
    "line-usage-nulls": "every token count is null",
    "line-usage-optional-null": "every usage field is null that the SDK declares as optional",
}
_OPENAI_LINES = {"line-both", "line-status-0", "line-top-logprobs-null", "line-finish-error", "line-error-200"}


def _all() -> Iterator[Fault]:
    for name, description in REPLIES.items():
        seconds = 3600.0 if name == "hang" else 0.0
        yield Fault(f"{name}-before", "before", CALLS, f"the server does not act; {description}", seconds=seconds)
        yield Fault(f"{name}-after", "after", CALLS, f"the server acts, then: {description}", seconds=seconds)
    yield Fault("late-act", "late", CALLS, "no reply; the server acts `seconds` of virtual time later", seconds=30.0)
    for name, (_, description) in RATE_LIMITS.items():
        yield Fault(name, "before", CALLS, f"rate limited, {description}")
    for name, (dialect, _, description) in REFUSALS.items():
        yield Fault(name, "before", CALLS, description, dialect)
    for name, (_, _, description) in FOREIGN_ERRORS.items():
        if name == "403-flagged":
            yield Fault(name, "before", CALLS, description, by_key=True)
        else:
            yield Fault(name, "before", CALLS, f"{description}; `value` is the status")
    yield Fault("400-cannot-find-file", "before", ("create",), "the input file is not found yet", "openai")
    for status in (301, 302, 303, 307, 308):
        description = f"redirect with status {status} to `value` (default: another host name)"
        yield Fault(f"redirect-{status}", "before", CALLS, description)
    for name, description in CHANGED.items():
        calls = ("upload", "create", *ANSWERED) if name.startswith("status-") else CALLS
        yield Fault(name, "change", calls, description, seconds=130.0 if name == "slow-reply" else 0.0)
    for name, description in _DOWNLOADS.items():
        yield Fault(name, "download", DOWNLOADS, description, seconds=3600.0 if name == "stall" else 0.0)
    for name, description in _VIEWS.items():
        views = {"results-expired": DOWNLOADS, "poll-404": ("poll",), "results-elsewhere": ("poll", "list", "results")}
        only: dict[str, Dialect] = {"results-elsewhere": "anthropic", "errors-data-null": "openai"}
        seconds = 60.0 if name == "output-late" else 0.0
        yield Fault(name, "view", views.get(name, ("poll", "list")), description, only.get(name), seconds)
    for name, description in _LISTS.items():
        yield Fault(name, "list", ("list",), description, seconds={"list-lag": 600.0, "list-stale": 0.7}.get(name, 0.0))
    for name, description in _BATCHES.items():
        openai_only = name in ("validation-failed", "token-limit", "token-limit-azure")
        yield Fault(name, "batch", ("create",), description, "openai" if openai_only else None)
    for name, description in _UPLOADS.items():
        yield Fault(name, "upload", ("upload",), description, "openai")
    for name, description in {**_LINES, **_ANSWERS}.items():
        also = ANSWERED if name in _ANSWERS else ()
        yield Fault(name, "line", ("line",), description, "openai" if name in _OPENAI_LINES else None, also=also)


FAULTS: dict[str, Fault] = {fault.name: fault for fault in _all()}


def listing() -> str:
    """The catalogue as text, one fault per line."""
    width = max(map(len, FAULTS))
    return "\n".join(f"{fault.name:<{width}}  {fault.description}" for fault in FAULTS.values())
