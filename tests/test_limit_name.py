"""A chat server's refusal of the token limit: of its name, or of its value."""

import json

import pytest

from batchbench.providers.interface import Problem
from batchbench.transport.limit_name import LimitName
from batchbench.transport.replies import Refused


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.", True),
        ("use max_completion_tokens", True),
        ("Unrecognized request argument supplied: max_tokens", True),
        ("unknown field `max_tokens`", True),
        ("got an unexpected keyword argument 'max_tokens'", True),
        ("max_tokens: Extra inputs are not permitted", True),
        ("Additional properties are not allowed ('max_tokens' was unexpected)", True),
        ("'max_tokens' is not supported with this model", True),
        ("unsupported_parameter: max_tokens", True),
        ("The parameter max_tokens is not supported", True),
        ("max_tokens: values above 100 are not allowed for this key", False),
        ("Unsupported value: 'max_tokens' does not support 300 with this model", False),
        ("max_tokens is too large: 300. At most 100 are supported", False),
        ("max_tokens of 300 is not permitted, use at most 100 instead", False),
        ("'max_tokens' or 'max_completion_tokens' is too large: 400. The maximum context length is 300 tokens.", False),
        ("unknown model", False),
    ],
)
def test_only_a_refusal_of_the_name_changes_the_name(text: str, wrong: bool) -> None:
    body = json.dumps({"error": {"message": text}}).encode()
    limit_name, sent = LimitName(), b'{"max_tokens":300,"messages":[]}'
    assert limit_name.learn(Refused(Problem(status=400), "refused", body=body), sent) == wrong
    assert (b"max_completion_tokens" in limit_name.apply(sent)) == wrong
