"""Every fault the emulator can play: its name, where it strikes, and one line about it.

Standard library only, so that `batchbench emulate --list-faults` starts at once.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

Where = Literal["before", "after", "late", "download", "view", "list", "fate", "upload", "line"]

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
    where: Where
    calls: tuple[str, ...]  # where a rule without `on` applies
    says: str
    dialect: Dialect | None = None
    seconds: float = 0.0  # default of the rule's `seconds`


class Refusal(NamedTuple):
    """An answer given instead of acting."""

    status: int
    code: str  # OpenAI error.code, Anthropic error type
    message: str
    retry_after: tuple[str, str] | None = None  # header and value


# Replies that can replace the true one, before the server has acted or after.
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
    "extra-bytes": "a valid empty reply followed by bytes that belong to nothing",
}

RATE_LIMITS = {
    "429-bare": (None, "without Retry-After"),
    "429-seconds": (("retry-after", "2"), "Retry-After in whole seconds"),
    "429-float": (("retry-after", "1.5"), "Retry-After with a fraction"),
    "429-date": (("retry-after", "date"), "Retry-After as an HTTP date two seconds ahead"),
    "429-past-date": (("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), "Retry-After as a date in the past"),
    "429-ms": (("retry-after-ms", "300"), "retry-after-ms"),
    "429-negative": (("retry-after", "-5"), "Retry-After below zero"),
    "429-inf": (("retry-after", "inf"), "Retry-After: inf"),
    "429-nan": (("retry-after", "nan"), "Retry-After: nan"),
    "429-text": (("retry-after", "37s"), "Retry-After with a unit"),
    "429-huge": (("retry-after", "1000000000"), "Retry-After of thirty years"),
    "429-no-retry": (("x-should-retry", "false"), "x-should-retry: false"),
}

_QUOTA = "You exceeded your current quota, please check your plan and billing details."

REFUSALS: dict[str, tuple[Dialect | None, Refusal, str]] = {
    "429-slow-down": (
        "openai",
        Refusal(429, "slow_down", "Please reduce your request rate.", ("retry-after", "1")),
        "slow_down",
    ),
    "429-queue-full": (
        None,
        Refusal(429, "rate_limit_exceeded", "Too many requests are queued; wait for a batch to end."),
        "the batch queue is full",
    ),
    "429-insufficient-quota": ("openai", Refusal(429, "insufficient_quota", _QUOTA), "no credit left"),
    "429-credit-balance": ("openai", Refusal(429, "credit_balance_exhausted", _QUOTA), "credit_balance_exhausted"),
    "429-org-spend-limit": (
        "openai",
        Refusal(429, "organization_spend_limit_exceeded", _QUOTA),
        "organization_spend_limit_exceeded",
    ),
    "429-project-spend-limit": (
        "openai",
        Refusal(429, "project_spend_limit_exceeded", _QUOTA),
        "project_spend_limit_exceeded",
    ),
    "429-usage-limit": (
        "openai",
        Refusal(429, "organization_usage_limit_exceeded", _QUOTA),
        "organization_usage_limit_exceeded",
    ),
    "429-hard-limit": ("openai", Refusal(429, "billing_hard_limit_reached", _QUOTA), "billing_hard_limit_reached"),
    "429-spend-cap": (
        "anthropic",
        Refusal(429, "enforced_spend_limit_reached", "The monthly spend limit of this organization is reached."),
        "enforced_spend_limit_reached, no Retry-After",
    ),
    "429-ramp-limit": (
        "anthropic",
        Refusal(429, "ramp_limit_exceeded", "Usage grew too fast.", ("retry-after", "3")),
        "ramp_limit_exceeded",
    ),
    "402-billing": (None, Refusal(402, "billing_error", "There is a problem with your billing."), "billing_error"),
    "400-usage-limits": (
        "anthropic",
        Refusal(
            400,
            "invalid_request_error",
            "You have reached your specified API usage limits. You will regain access on 2027-01-01 at 00:00 UTC.",
        ),
        "the account's own spend limit",
    ),
    "400-not-json": (
        None,
        Refusal(400, "invalid_request_error", "The request body is not valid JSON: unexpected end of data."),
        "a valid body called invalid JSON",
    ),
    "401-revoked": (None, Refusal(401, "invalid_api_key", "Incorrect API key provided."), "the key is refused"),
    "401-echo-key": (None, Refusal(401, "invalid_api_key", ""), "the key is refused, and quoted in the message"),
    "403-permission": (None, Refusal(403, "permission_error", "You have no access to this."), "permission denied"),
    "404-foreign-key": (None, Refusal(404, "not_found_error", "Not found."), "the key belongs to another project"),
    "413-too-large": (None, Refusal(413, "request_too_large", "Request exceeds the maximum size."), "413 as JSON"),
    "413-html": (None, Refusal(413, "", ""), "413 as a CDN's HTML page"),
}

_CUTS = {
    "cut-length": "half the body under the full Content-Length",
    "cut-chunked": "chunked body without its last chunk",
    "cut-line": "no length, connection closed after a whole line",
    "cut-mid-line": "no length, connection closed inside a line",
    "cut-utf8": "no length, connection closed inside a character",
    "gzip-cut": "gzip stream that stops half-way",
    "gzip-crc": "gzip stream with a wrong checksum",
    "gzip-fake": "Content-Encoding: gzip on plain bytes",
    "gzip-double": "gzip inside gzip, announced once",
    "brotli-fake": "Content-Encoding: br that nobody asked for",
    "gzip-bomb": "1 GiB of spaces in 1 MB of gzip",
    "endless": "a body that never ends",
    "huge-length": "a Content-Length of 1 TB",
    "slow": "one byte every 0.3 s",
    "stall": "headers, then nothing for `seconds` of virtual time",
    "range-ignored": "answers a Range request with 200 and everything",
    "range-416": "answers a Range request with 416",
    "range-wrong": "answers a Range request with other bytes than asked for",
}

_VIEWS = {
    "status-unknown": "a status word that nobody knows",
    "status-capitalised": "the status with a capital letter",
    "status-backwards": "a finished batch shown as in progress",
    "poll-404": "the batch is not found",
    "counts-zero": "all request counts are 0",
    "counts-contradict": "request counts that contradict the results",
    "output-null": "finished, but no result file is named",
    "output-empty": "finished, result file ids are empty strings",
    "output-late": "result files are named only `seconds` of virtual time after the end",
    "results-expired": "the results are gone as if kept too long",
}

_LISTS = {
    "list-lag": "batches younger than `seconds` of virtual time are not listed",
    "list-stale": "the listing is taken, then sent `seconds` of real time later",
    "list-repeat": "the same page again, whatever the cursor",
    "list-duplicates": "rows of the page before come again",
    "list-empty-more": "an empty page that says there is more",
    "list-cursor-gone": "the cursor is not known any more",
    "list-envelope": "rows under `value` instead of `data`",
}

_FATES = {
    "validation-failed": "the batch fails in validation, naming the first lines",
    "token-limit": "the batch fails with token_limit_exceeded",
    "expire-half": "half is answered, the rest expires `seconds` after creation",
    "expire-none": "everything expires `seconds` after creation, no result file",
    "cancelled-elsewhere": "somebody else cancels `seconds` after creation, half is answered",
    "deleted-elsewhere": "the batch does not exist for anybody once accepted",
    "stuck": "the batch stays in progress for ever, past its own expiry",
    "dup-accept": "one create is accepted twice",
    "foreign": "somebody else creates a batch of the same size at the same moment",
}

_UPLOADS = {
    "upload-bytes": "the file object says fewer bytes than were sent",
    "upload-cut": "the connection closes in the middle of the upload",
    "file-quota": "no room for another file",
}

_LINES = {
    "line-malformed": "half a line of JSON",
    "line-nan": "a NaN in the line",
    "line-bom": "a byte order mark before the line",
    "line-blank": "a blank line before the line",
    "line-crlf": "CR LF at the end of the line",
    "line-trailing": "text after the JSON",
    "line-invalid-utf8": "bytes that are not UTF-8 in the answer",
    "line-surrogate": "half a surrogate pair, escaped, in the answer",
    "line-u2028": "U+2028, U+2029 and U+0085 in the answer",
    "line-nul": "a NUL in the answer",
    "line-ansi": "terminal escape sequences in the answer",
    "line-duplicate": "the line twice",
    "line-conflict": "the line twice, with different answers",
    "line-duplicate-key": "two custom_id keys in one line",
    "line-missing": "no line (answered and billed)",
    "line-unknown-id": "the id of nobody",
    "line-foreign-id": "an id of another submission",
    "line-out-of-range": "the right nonce with a row that does not exist",
    "line-swapped": "two lines exchange their ids",
    "line-both": "the id in the success file and in the error file",
    "line-refusal": "a refusal",
    "line-content-filter": "stopped by a content filter",
    "line-policy": "refused by a content policy, not billed",
    "line-empty": "an empty answer",
    "line-tool-call": "a tool call instead of text",
    "line-max-tokens": "cut by the token limit",
    "line-other-model": "answered by another model than asked",
    "line-huge": "an answer of `value` bytes (20 MB)",
    "line-nested": "a field nested 100,000 deep",
    "line-huge-integer": "an integer of 5,000 digits",
    "line-choices-many": "three choices (OpenAI) or text blocks (Anthropic)",
    "line-choices-none": "no choice, no block",
    "line-content-list": "content in the other shape: list or string",
    "line-thinking": "a thinking block before the text",
    "line-credit": "an error line: the credit balance is too low",
    "line-renamed": "a field under another name",
    "line-wrapped": "the whole line inside another object",
    "line-number-text": "a number as text",
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
    for name, says in REPLIES.items():
        seconds = 3600.0 if name == "hang" else 0.0
        yield Fault(f"{name}-before", "before", CALLS, f"nothing done; {says}", seconds=seconds)
        yield Fault(f"{name}-after", "after", CALLS, f"done, but: {says}", seconds=seconds)
    yield Fault("late-act", "late", CALLS, "no reply; acts `seconds` of virtual time later", seconds=30.0)
    for name, (_, says) in RATE_LIMITS.items():
        yield Fault(name, "before", CALLS, f"rate limited, {says}")
    for name, (dialect, _, says) in REFUSALS.items():
        yield Fault(name, "before", CALLS, says, dialect)
    yield Fault("400-cannot-find-file", "before", ("create",), "the input file is not found yet", "openai")
    for status in (301, 302, 303, 307, 308):
        yield Fault(f"redirect-{status}", "before", CALLS, f"status {status} to `value` (another host name)")
    for name, says in _CUTS.items():
        yield Fault(name, "download", DOWNLOADS, says, seconds=3600.0 if name == "stall" else 0.0)
    for name, says in _VIEWS.items():
        calls = DOWNLOADS if name == "results-expired" else ("poll",) if name == "poll-404" else ("poll", "list")
        yield Fault(name, "view", calls, says, seconds=60.0 if name == "output-late" else 0.0)
    for name, says in _LISTS.items():
        yield Fault(name, "list", ("list",), says, seconds={"list-lag": 600.0, "list-stale": 0.7}.get(name, 0.0))
    for name, says in _FATES.items():
        openai_only = name in ("validation-failed", "token-limit")
        yield Fault(name, "fate", ("create",), says, "openai" if openai_only else None)
    for name, says in _UPLOADS.items():
        yield Fault(name, "upload", ("upload",), says, "openai")
    for name, says in _LINES.items():
        yield Fault(name, "line", ("line",), says, "openai" if name in ("line-both", "line-status-0") else None)


FAULTS: dict[str, Fault] = {fault.name: fault for fault in _all()}


def listing() -> str:
    """The catalogue as text, one fault per line."""
    wide = max(map(len, FAULTS))
    return "\n".join(f"{fault.name:<{wide}}  {fault.says}" for fault in FAULTS.values())
