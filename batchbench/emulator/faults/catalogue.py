"""Every fault that the emulator can inject: its name, its kind, the calls it can affect, and a description.

Uses the standard library only, so that `batchbench emulate --list-faults` starts fast.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["before", "after", "late", "download", "view", "list", "batch", "upload", "line"]

Dialect = Literal["openai", "anthropic"]

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


class Fault(NamedTuple):
    name: str
    kind: Kind
    calls: tuple[str, ...]  # the calls that it can affect; the default of the rule's `on`
    description: str
    dialect: Dialect | None = None
    seconds: float = 0.0  # default of the rule's `seconds`


class Refusal(NamedTuple):
    """An error reply; the server does nothing else."""

    status: int
    code: str  # OpenAI error.code, Anthropic error type
    message: str
    retry_after: tuple[str, str] | None = None  # header and value


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
    "reset": "connection reset, no reply",
    "close": "connection closed, no reply",
    "hang": "no reply for `seconds` of virtual time, then the connection closes",
    "bad-status-line": "a status line that is not HTTP",
    "http09": "a body without any status line or header",
    "huge-header": "one header of 100 KB",
    "header-bomb": "20,000 headers",
    "extra-bytes": "a valid empty reply, followed by bytes of a second reply",
}

RATE_LIMITS = {
    "429-bare": (None, "without Retry-After"),
    "429-seconds": (("retry-after", "2"), "Retry-After in whole seconds"),
    "429-float": (("retry-after", "1.5"), "Retry-After with a fraction"),
    "429-date": (("retry-after", "date"), "Retry-After as an HTTP date two seconds in the future"),
    "429-past-date": (("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), "Retry-After as a date in the past"),
    "429-ms": (("retry-after-ms", "300"), "retry-after-ms"),
    "429-negative": (("retry-after", "-5"), "Retry-After below zero"),
    "429-inf": (("retry-after", "inf"), "Retry-After: inf"),
    "429-nan": (("retry-after", "nan"), "Retry-After: nan"),
    "429-text": (("retry-after", "37s"), "Retry-After with a unit"),
    "429-huge": (("retry-after", "1000000000"), "Retry-After of 30 years"),
    "429-no-retry": (("x-should-retry", "false"), "x-should-retry: false"),
}

_QUOTA = "You exceeded your current quota, please check your plan and billing details."

REFUSALS: dict[str, tuple[Dialect | None, Refusal, str]] = {
    "429-slow-down": (
        "openai",
        Refusal(429, "slow_down", "Please reduce your request rate.", ("retry-after", "1")),
        "code slow_down",
    ),
    "429-queue-full": (
        None,
        Refusal(429, "rate_limit_exceeded", "Too many requests are queued; wait for a batch to end."),
        "the batch queue is full",
    ),
    "429-insufficient-quota": ("openai", Refusal(429, "insufficient_quota", _QUOTA), "no credit left"),
    "429-credit-balance": ("openai", Refusal(429, "credit_balance_exhausted", _QUOTA), "code credit_balance_exhausted"),
    "429-org-spend-limit": (
        "openai",
        Refusal(429, "organization_spend_limit_exceeded", _QUOTA),
        "code organization_spend_limit_exceeded",
    ),
    "429-project-spend-limit": (
        "openai",
        Refusal(429, "project_spend_limit_exceeded", _QUOTA),
        "code project_spend_limit_exceeded",
    ),
    "429-usage-limit": (
        "openai",
        Refusal(429, "organization_usage_limit_exceeded", _QUOTA),
        "code organization_usage_limit_exceeded",
    ),
    "429-hard-limit": ("openai", Refusal(429, "billing_hard_limit_reached", _QUOTA), "code billing_hard_limit_reached"),
    "429-spend-cap": (
        "anthropic",
        Refusal(429, "enforced_spend_limit_reached", "The monthly spend limit of this organization is reached."),
        "code enforced_spend_limit_reached, without Retry-After",
    ),
    "429-ramp-limit": (
        "anthropic",
        Refusal(429, "ramp_limit_exceeded", "Usage grew too fast.", ("retry-after", "3")),
        "code ramp_limit_exceeded",
    ),
    "402-billing": (
        None,
        Refusal(402, "billing_error", "There is a problem with your billing."),
        "status 402",
    ),
    "400-usage-limits": (
        "anthropic",
        Refusal(
            400,
            "invalid_request_error",
            "You have reached your specified API usage limits. You will regain access on 2027-01-01 at 00:00 UTC.",
        ),
        "the spend limit that the account owner has set",
    ),
    "400-not-json": (
        None,
        Refusal(400, "invalid_request_error", "The request body is not valid JSON: unexpected end of data."),
        "a valid body is rejected as invalid JSON",
    ),
    "401-revoked": (None, Refusal(401, "invalid_api_key", "Incorrect API key provided."), "the key is refused"),
    "401-echo-key": (None, Refusal(401, "invalid_api_key", ""), "the key is refused and quoted in the message"),
    "403-permission": (None, Refusal(403, "permission_error", "You have no access to this."), "permission denied"),
    "404-foreign-key": (None, Refusal(404, "not_found_error", "Not found."), "the key belongs to another project"),
    "413-too-large": (
        None,
        Refusal(413, "request_too_large", "Request exceeds the maximum size."),
        "status 413, JSON",
    ),
    "413-html": (None, Refusal(413, "", ""), "status 413 with a CDN's HTML page"),
}

_DOWNLOADS = {
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
}

_LISTS = {
    "list-lag": "batches younger than `seconds` of virtual time are missing from the listing",
    "list-stale": "the listing is sent `seconds` of real time after it was made",
    "list-repeat": "every cursor gives the first page again",
    "list-duplicates": "rows of the previous page are repeated",
    "list-empty-more": "an empty page with has_more = true",
    "list-cursor-gone": "the cursor is refused as unknown",
    "list-envelope": "rows under `value` instead of `data`",
}

_BATCHES = {
    "validation-failed": "the batch fails in validation, with errors in its first lines",
    "token-limit": "the batch fails with token_limit_exceeded",
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
    "line-refusal": "the model refuses",
    "line-content-filter": "stopped by a content filter",
    "line-policy": "refused by a content policy, not billed",
    "line-empty": "an empty answer",
    "line-tool-call": "a tool call instead of text",
    "line-max-tokens": "the answer is cut by the token limit",
    "line-other-model": "the answer names another model",
    "line-huge": "an answer of `value` bytes (default: 20 MB)",
    "line-nested": "a field nested 100,000 deep",
    "line-huge-integer": "an integer of 5,000 digits",
    "line-choices-many": "three choices (OpenAI) or text blocks (Anthropic)",
    "line-choices-none": "no choice (OpenAI) or no block (Anthropic)",
    "line-content-list": "content as a list instead of a string, or the other way round",
    "line-thinking": "a thinking block before the text",
    "line-credit": "an error line: the credit balance is too low",
    "line-renamed": "`content` is called `contents`",
    "line-wrapped": "the whole line inside another object",
    "line-number-text": "token counts as strings",
    "line-usage-absent": "no usage",
    "line-usage-negative": "negative usage",
    "line-usage-huge": "usage of 10**12 tokens",
    "line-status-0": "status_code 0",
    "line-null-id": "custom_id null",
    "line-timeout": "an error line: the model timed out",
    "line-500": "an error line: the server failed",
    "line-429": "an error line: rate limited",
}


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
    yield Fault("400-cannot-find-file", "before", ("create",), "the input file is not found yet", "openai")
    for status in (301, 302, 303, 307, 308):
        description = f"redirect with status {status} to `value` (default: another host name)"
        yield Fault(f"redirect-{status}", "before", CALLS, description)
    for name, description in _DOWNLOADS.items():
        yield Fault(name, "download", DOWNLOADS, description, seconds=3600.0 if name == "stall" else 0.0)
    for name, description in _VIEWS.items():
        calls = DOWNLOADS if name == "results-expired" else ("poll",) if name == "poll-404" else ("poll", "list")
        yield Fault(name, "view", calls, description, seconds=60.0 if name == "output-late" else 0.0)
    for name, description in _LISTS.items():
        yield Fault(name, "list", ("list",), description, seconds={"list-lag": 600.0, "list-stale": 0.7}.get(name, 0.0))
    for name, description in _BATCHES.items():
        openai_only = name in ("validation-failed", "token-limit")
        yield Fault(name, "batch", ("create",), description, "openai" if openai_only else None)
    for name, description in _UPLOADS.items():
        yield Fault(name, "upload", ("upload",), description, "openai")
    for name, description in _LINES.items():
        yield Fault(name, "line", ("line",), description, "openai" if name in ("line-both", "line-status-0") else None)


FAULTS: dict[str, Fault] = {fault.name: fault for fault in _all()}


def listing() -> str:
    """The catalogue as text, one fault per line."""
    width = max(map(len, FAULTS))
    return "\n".join(f"{fault.name:<{width}}  {fault.description}" for fault in FAULTS.values())
