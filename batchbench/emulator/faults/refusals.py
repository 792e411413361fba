"""The error replies of faults: rate limits, refusals in the dialect's format, and errors in other servers' formats.

Uses the standard library only, like the catalogue.
"""

from typing import Literal, NamedTuple

Dialect = Literal["openai", "anthropic"]


class Refusal(NamedTuple):
    """An error reply; the server does nothing else."""

    status: int
    code: str  # OpenAI error.code, Anthropic error type
    message: str
    retry_after: tuple[str, str] | None = None  # header and value


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
    "402-retry-after": (
        None,
        Refusal(402, "billing_error", "The credit for requests in flight is used up.", ("retry-after", "2")),
        "status 402 with Retry-After: the credit is held by requests in flight",
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
    "400-batch-only": (
        "openai",
        Refusal(
            400,
            "OperationNotSupported",
            "The chatCompletion operation does not work with the specified model. Please choose different model.",
        ),
        "a deployment for batches refuses synchronous calls, as at Azure",
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

FOREIGN_ERRORS: dict[str, tuple[int, object, str]] = {
    "403-flagged": (
        403,
        {
            "error": {
                "message": "Your input was flagged by a moderation filter.",
                "code": 403,
                "metadata": {"reasons": ["harassment"], "flagged_input": "...", "provider_name": "Emulated"},
            }
        },
        "status 403: a gateway's moderation refuses the prompt, the same prompts every time",
    ),
    "error-string": (400, {"error": "this request is not valid"}, "the error is a string, as at Ollama and LM Studio"),
    "error-flat": (
        400,
        {"object": "error", "message": "not valid", "type": "BadRequestError", "param": None, "code": 400},
        "the error is the whole document, as at older servers of vLLM",
    ),
    "error-int-code": (
        400,
        {"error": {"message": "not valid", "type": "BadRequestError", "param": None, "code": 400}},
        "the error's code is a number, as at vLLM and llama.cpp",
    ),
    "error-nested": (
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": '{"error":{"message":"not valid","type":"invalid_request_error"}}'},
            }
        },
        "a gateway's error, with the provider's error as JSON text inside",
    ),
    "error-detail": (
        422,
        {"detail": [{"loc": ["body", "model"], "msg": "this error is not valid", "type": "value_error"}]},
        "the error is a list under `detail`, as at FastAPI servers",
    ),
    "error-200": (
        200,
        {"error": {"message": "Provider returned error", "code": 502}},
        "status 200 with an error and no answer, as at OpenRouter",
    ),
}
