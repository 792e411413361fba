"""Models that think get requests that leave room for an answer, and parameters that their family accepts."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import batchbench as bb
from batchbench.app.plan import make_target
from batchbench.app.requests import Options, convert
from batchbench.cli.options import extra
from batchbench.errors import UsageError
from batchbench.probes import load_probe
from batchbench.providers import families, load_provider, prices
from batchbench.providers.target import Target, changed_options

THINKS = ("never", "if asked", "by default", "always")
# Model, what is sent by default, and whether it thinks nevertheless.
DEFAULTS = [
    ("openai:gpt-4.1-mini", {}, False),
    ("openai:gpt-4o-2024-08-06", {}, False),
    ("openai:ft:gpt-4.1-mini:org::abc", {}, False),
    ("openai:gpt-5-chat-latest", {}, False),
    ("openai:gpt-5.1", {}, False),
    ("openai:gpt-5.2-2025-12-11", {}, False),
    ("openai:gpt-5.4-nano", {}, False),
    ("openai:gpt-5.5", {"reasoning_effort": "none"}, False),
    ("openai:gpt-5.6-terra", {"reasoning_effort": "none"}, False),
    ("openai:gpt-6-sol", {"reasoning_effort": "none"}, False),
    ("openai:gpt-6-luna", {"reasoning_effort": "none"}, False),
    ("openai:gpt-6.1-terra", {"reasoning_effort": "none"}, False),
    ("openai:gpt-6.2-sol", {"reasoning_effort": "none"}, False),  # not known yet
    ("openai:gpt-5", {"reasoning_effort": "minimal"}, True),
    ("openai:gpt-5-mini", {"reasoning_effort": "minimal"}, True),
    ("openai:gpt-5-nano-2025-08-07", {"reasoning_effort": "minimal"}, True),
    ("openai:o3", {"reasoning_effort": "low"}, True),
    ("openai:o4-mini-2025-04-16", {"reasoning_effort": "low"}, True),
    ("openai:o1-mini", {}, True),
    ("openai:gpt-6-astra", {"reasoning_effort": "low"}, True),
    ("openai:gpt-6.1-sol", {"reasoning_effort": "low"}, True),
    ("openai:my-deployment", {}, False),
    ("anthropic:claude-3-5-haiku-latest", {}, False),
    ("anthropic:claude-haiku-4-5-20251001", {}, False),
    ("anthropic:claude-sonnet-4-6", {}, False),
    ("anthropic:claude-opus-4-8", {}, False),
    ("anthropic:claude-opus-5", {"thinking": {"type": "disabled"}}, False),
    ("anthropic:claude-sonnet-5", {"thinking": {"type": "disabled"}}, False),
    ("anthropic:claude-haiku-5-5", {"thinking": {"type": "disabled"}}, False),
    ("anthropic:claude-sonnet-5-5", {"thinking": {"type": "between_tools"}}, False),
    ("anthropic:claude-opus-5-5", {"output_config": {"effort": "low"}}, True),
    ("anthropic:claude-fable-5-2", {"output_config": {"effort": "low"}}, True),
    ("anthropic:claude-mythos-5", {"output_config": {"effort": "low"}}, True),
    ("anthropic:claude-opus-6", {"output_config": {"effort": "low"}}, True),  # not known yet
    ("chat:Qwen/Qwen3-8B@http://127.0.0.1:1/v1", {"chat_template_kwargs": {"enable_thinking": False}}, False),
    ("chat:openai/gpt-oss-20b@http://127.0.0.1:1/v1", {"reasoning_effort": "low"}, True),
    ("chat:deepseek-r1:7b@http://127.0.0.1:1/v1", {}, True),
    ("chat:llama-3.3-70b@http://127.0.0.1:1/v1", {}, False),
    ("sim:random", {}, False),
    ("sim:anthropic/random", {}, False),
]
ALWAYS_SENT = {"model", "max_tokens", "max_completion_tokens", "messages"}


def target(name: str, **options: object) -> Target:
    """A target as a run of `inventories` makes it."""
    probe = load_probe("inventories")
    return make_target(name, convert(Options, options), probe, probe.params())


def sent(name: str, **options: object) -> dict[str, Any]:
    """The fields of a request, without the usual ones."""
    made = target(name, **options)
    request = json.loads(load_provider(made.provider).encoder(made)("n-1-0", "hello"))
    body = request.get("body") or request["params"]
    return {key: value for key, value in body.items() if key not in ALWAYS_SENT}


@pytest.mark.parametrize(("name", "fields", "thinks"), DEFAULTS)
def test_thinking_is_off_or_gets_the_least_effort_and_headroom(name: str, fields: object, thinks: bool) -> None:
    assert sent(name) == fields
    made, limit = target(name), load_probe("inventories").max_tokens
    assert made.max_tokens >= limit + 1_000 if thinks else made.max_tokens == limit
    assert changed_options(load_probe("inventories"), made) == {}


@pytest.mark.parametrize("name", ["chat:qwen3@http://127.0.0.1:1/v1", "anthropic:claude-haiku-5-5", "openai:o3"])
def test_thinking_can_be_left_to_the_provider(name: str) -> None:
    assert sent(name, thinking="default") == {}
    assert target(name, thinking="default").max_tokens >= load_probe("inventories").max_tokens + 8_000


def test_a_limit_that_the_user_chose_is_kept() -> None:
    assert target("openai:gpt-6.1-sol", max_tokens=30).max_tokens == 30
    assert changed_options(load_probe("inventories"), target("openai:gpt-6.1-sol", max_tokens=30)) == {"max_tokens": 30}


@pytest.mark.parametrize(
    ("name", "options", "fields"),
    [
        ("openai:gpt-5.1", {"effort": "high"}, {"reasoning_effort": "high"}),
        ("openai:gpt-5.1", {"thinking": "on"}, {"reasoning_effort": "medium"}),
        ("openai:gpt-5.1", {"thinking": "off"}, {"reasoning_effort": "none"}),
        ("openai:gpt-6.1-terra", {"effort": "max"}, {"reasoning_effort": "max"}),
        ("openai:o3", {"thinking": "on"}, {"reasoning_effort": "medium"}),
        ("openai:my-deployment", {"effort": "ultra"}, {"reasoning_effort": "ultra"}),
        ("anthropic:claude-haiku-5-5", {"effort": "high"}, {"output_config": {"effort": "high"}}),
        ("anthropic:claude-haiku-5-5", {"thinking": "on"}, {"thinking": {"type": "adaptive"}}),
        ("anthropic:claude-haiku-5-5", {"thinking": "adaptive"}, {"thinking": {"type": "adaptive"}}),
        (
            "anthropic:claude-haiku-5-5",
            {"thinking": "off", "effort": "high"},
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
        ),
        (
            "anthropic:claude-opus-4-8",
            {"effort": "low"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        ),
        ("anthropic:claude-haiku-4-5", {"thinking": "on"}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("anthropic:claude-opus-6", {"thinking": "off"}, {"thinking": {"type": "disabled"}}),
        ("chat:qwen3@http://127.0.0.1:1/v1", {"effort": "low"}, {"reasoning_effort": "low"}),
        (
            "chat:qwen3@http://127.0.0.1:1/v1",
            {"thinking": "off"},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        ("chat:llama3@http://127.0.0.1:1/v1", {"extra": {"think": False}}, {"think": False}),
        ("openai:gpt-4.1-mini", {"extra": {"seed": 1, "logit_bias": {}}}, {"logit_bias": {}, "seed": 1}),
        ("anthropic:claude-haiku-4-5", {"extra": {"top_k": 5}}, {"top_k": 5}),
    ],
)
def test_options_about_thinking_are_sent_in_the_words_of_the_family(
    name: str, options: dict[str, object], fields: object
) -> None:
    assert sent(name, **options) == fields
    given = changed_options(load_probe("inventories"), target(name, **options))
    assert set(given) == set(options)
    assert target(name, **options).slug != target(name).slug


@pytest.mark.parametrize("name", ["openai:gpt-5.1", "openai:my-deployment", "anthropic:claude-haiku-5-5"])
def test_more_effort_gets_more_headroom(name: str) -> None:
    limits = [target(name, effort=effort).max_tokens for effort in ("low", "medium", "high")]
    assert target(name).max_tokens < limits[0] < limits[1] < limits[2]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("openai:gpt-5-pro", {}, "exists only on /v1/responses, so it cannot be asked: choose another model"),
        ("openai:gpt-5.1-codex-mini", {}, "exists only on /v1/responses"),
        ("openai:o3-deep-research", {}, "exists only on /v1/responses"),
        ("openai:text-embedding-3-small", {}, "is not a chat model"),
        ("openai:gpt-4.1", {"effort": "low"}, "does not accept --effort low: leave it out"),
        ("openai:gpt-4.1", {"thinking": "on"}, "does not think"),
        ("openai:gpt-5", {"effort": "none"}, "use one of minimal, low, medium, high"),
        ("openai:gpt-6.1-sol", {"effort": "minimal"}, "use one of low, medium, high, xhigh, max"),
        ("openai:gpt-6.1-sol", {"thinking": "off"}, "always thinks"),
        ("openai:gpt-5.1", {"thinking": "off", "effort": "high"}, "leave one out"),
        ("openai:gpt-5.1", {"thinking": "adaptive"}, "use one of default, off, on"),
        ("openai:gpt-5.1", {"effort": "low", "temperature": 0.5}, "takes no temperature while it thinks"),
        ("openai:gpt-6-astra", {"top_p": 0.5}, "takes no top_p while it thinks"),
        ("anthropic:claude-opus-5-5", {"thinking": "off"}, "always thinks"),
        ("anthropic:claude-haiku-5-5", {"thinking": "off", "effort": "max"}, "leave one out"),
        ("anthropic:claude-sonnet-5-5", {"thinking": "disabled"}, "one of adaptive, between_tools, default, off, on"),
        ("anthropic:claude-haiku-4-5", {"thinking": "on", "temperature": 0.5}, "takes no temperature while it thinks"),
        (
            "anthropic:claude-haiku-4-5",
            {"thinking": "on", "max_tokens": 300},
            "needs --max-tokens above 1,024 to think",
        ),
        ("openai:gpt-4.1", {"extra": {"model": "x"}}, "--extra model: batchbench sets this field itself: use --model"),
        ("openai:gpt-5.1", {"extra": {"reasoning_effort": "low"}}, "use --effort"),
        (
            "openai:gpt-4.1",
            {"extra": {"stream": True}},
            "--extra stream: batchbench sets this field itself: leave it out",
        ),
        ("anthropic:claude-haiku-5-5", {"extra": {"thinking": {}}}, "use --thinking"),
        ("anthropic:claude-haiku-4-5", {"extra": {"thinking": {}}}, "use --thinking"),
        ("openai:gpt-4.1", {"effort": "Very High"}, "'Very High' is not a word in lower case"),
        ("mlm:bert", {"effort": "low"}, "takes no effort"),
    ],
)
def test_what_a_family_does_not_accept_is_refused_in_one_line(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        target(name, **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_terra_takes_sampling_parameters_and_log_probabilities() -> None:
    asked = msgspec.structs.replace(target("openai:gpt-6.1-terra", temperature=0.5), top_logprobs=20, max_tokens=1)
    load_provider("openai").check(asked)


def test_extra_fields_are_json_in_one_order() -> None:
    assert extra(["b=[1,2]", "a=false", 'c="text"']) == {"b": [1, 2], "a": False, "c": "text"}
    one = target("openai:gpt-4.1", extra={"b": {"y": 1, "x": 2}, "a": 1})
    two = target("openai:gpt-4.1", extra={"a": 1, "b": {"x": 2, "y": 1}})
    assert one.extra == '{"a":1,"b":{"x":2,"y":1}}'
    assert one == two
    for wrong in ("a", "=1", "a=text", "a="):
        with pytest.raises(UsageError, match="is not KEY=JSON"):
            extra([wrong])


def test_every_model_in_the_price_table_can_be_asked() -> None:
    for name in prices.snapshot().models:
        provider, _, model = name.partition(":")
        assert families.unaskable(provider, model) is None
        thinking = families.resolve(provider, model, None, None)
        assert not families.find(provider, model).pattern or set(thinking.fields) <= {
            "reasoning_effort",
            "thinking",
            "output_config",
        }


def test_an_older_run_with_options_that_are_not_accepted_any_more_can_be_shown() -> None:
    old = Target(provider="openai", model="gpt-6.1-sol", max_tokens=300, effort="minimal")
    assert changed_options(load_probe("inventories"), old)["effort"] == "minimal"


def test_estimates_include_thoughts_and_the_size_of_tokens(tmp_path: Path) -> None:
    names = ["anthropic:claude-haiku-4-5", "anthropic:claude-haiku-5-5", "anthropic:claude-opus-5-5"]
    frame = bb.estimate("hiring_an", names, params={"data": "sample"}, home=tmp_path, sample_k=10)
    short, new, thinking = frame.rows(named=True)
    assert new["input_tokens"] == pytest.approx(1.3 * short["input_tokens"], abs=1)
    assert new["output_tokens"] == short["output_tokens"]
    assert thinking["output_tokens"] - short["output_tokens"] == families.TYPICAL["low"] * short["requests"]
    [more] = bb.estimate(
        "hiring_an", names[2], params={"data": "sample"}, home=tmp_path, sample_k=10, effort="high"
    ).rows(named=True)
    assert more["output_tokens"] > thinking["output_tokens"]
    assert more["worst_usd"] > thinking["worst_usd"]
    assert more["settings"] == "effort=high"


@pytest.mark.parametrize("provider", families.FAMILIES)
def test_every_family_can_do_what_its_row_says(provider: str) -> None:
    for family in families.FAMILIES[provider]:
        assert family.thinks in THINKS
        assert family.thinks != "by default" or family.off
        assert family.least in ("", *(family.efforts or ("low",)))
        assert family.default in families.HEADROOM
        assert {*(family.efforts or ())} <= {"none", *families.HEADROOM}
    assert families.FAMILIES[provider][-1].pattern == ""  # has every name
    assert families.HEADROOM.keys() == families.TYPICAL.keys()
    assert all(families.TYPICAL[effort] * 5 < room for effort, room in families.HEADROOM.items())
