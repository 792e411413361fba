"""Families: each accepts and refuses what the real model does, and its thoughts are billed and use up the tokens."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.emulator import LISTED, is_persona, model_exists, persona_exists
from batchbench.emulator.dialects.anthropic.codec import AnthropicCodec
from batchbench.emulator.dialects.openai.codec import OpenAICodec
from batchbench.emulator.families import table, thoughts
from batchbench.emulator.personas.interface import PersonaQuery, PersonaReply
from batchbench.emulator.personas.respond import echo
from tests.emulator.conftest import Emulate
from tests.emulator.driver import Emulator, chat_body

Json = dict[str, Any]
NEW, OLD = "2026-10-21", "2023-06-01"
DISABLED: Json = {"thinking": {"type": "disabled"}}
BETWEEN_TOOLS: Json = {"thinking": {"type": "between_tools"}}


def says(text: str) -> Any:
    return lambda _query: PersonaReply(text)


def chat(model: str, text: str = "five words are enough here", prompt: str = "Why?", **more: Any) -> Json:
    """The response to one line of an OpenAI batch: status and body."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], **more}
    line = json.dumps({"custom_id": "n-0-0", "method": "POST", "url": "u", "body": body}).encode()
    found: Json = json.loads(OpenAICodec("batch", 0.0, 0, lambda _model: says(text)).answer(line).line)["response"]
    return found


def message(model: str, text: str = "five words are enough here", version: str = NEW, **more: Any) -> Json:
    """The result of one request of a message batch."""
    params = {"model": model, "max_tokens": 300, "messages": [{"role": "user", "content": "Why?"}], **more}
    line = json.dumps({"custom_id": "n-0-0", "params": params}).encode()
    found: Json = json.loads(AnthropicCodec("batch", version, 0, lambda _model: says(text)).answer(line).line)["result"]
    return found


def reasoning(response: Json) -> int:
    assert response["status_code"] == 200, response
    return int(response["body"]["usage"]["completion_tokens_details"]["reasoning_tokens"])


def thinking(result: Json) -> int:
    assert result["type"] == "succeeded", result
    return int(result["message"]["usage"].get("output_tokens_details", {"thinking_tokens": 0})["thinking_tokens"])


# Which models think, and how they stop.


@pytest.mark.parametrize(
    "model", ["gpt-6.1-sol", "gpt-6.1-terra", "gpt-6-astra", "gpt-6-luna", "gpt-5.5", "gpt-5", "gpt-5-mini", "o4-mini"]
)
def test_reasoning_models_think_by_default_and_can_use_up_their_tokens(model: str) -> None:
    assert reasoning(chat(model, max_completion_tokens=5000)) > 0
    body = chat(model, max_completion_tokens=64)["body"]
    choice = body["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert body["usage"]["completion_tokens"] == body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 64


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("gpt-6.1-terra", {"reasoning_effort": "none"}),
        ("gpt-6-luna", {"reasoning_effort": "none"}),
        ("gpt-5.5", {"reasoning_effort": "none"}),
        ("gpt-5.1", {}),
        ("gpt-4.1-mini", {}),
        ("echo", {"reasoning_effort": "high"}),
    ],
)
def test_models_that_do_not_think_answer_at_once_and_take_every_parameter(model: str, more: Json) -> None:
    response = chat(model, max_completion_tokens=5, temperature=0.2, top_p=0.5, logprobs=True, top_logprobs=3, **more)
    assert reasoning(response) == 0
    assert response["body"]["choices"][0]["message"]["content"] == "five words are enough here"


def test_minimal_effort_leaves_tokens_for_the_answer() -> None:
    body = chat("gpt-5-mini", max_completion_tokens=300, reasoning_effort="minimal")["body"]
    assert body["choices"][0]["message"]["content"] == "five words are enough here"
    assert 8 <= body["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 60


@pytest.mark.parametrize(
    ("model", "more", "param", "code"),
    [
        ("gpt-6.1-sol", {"reasoning_effort": "none"}, "reasoning_effort", "unsupported_value"),
        ("gpt-6-astra", {"reasoning_effort": "none"}, "reasoning_effort", "unsupported_value"),
        ("gpt-6.1-terra", {"reasoning_effort": "minimal"}, "reasoning_effort", "unsupported_value"),
        ("gpt-5-mini", {"reasoning_effort": "none"}, "reasoning_effort", "unsupported_value"),
        ("gpt-5-mini", {"reasoning_effort": "xhigh"}, "reasoning_effort", "unsupported_value"),
        ("o4-mini", {"reasoning_effort": "minimal"}, "reasoning_effort", "unsupported_value"),
        ("gpt-6.1-sol", {"max_tokens": 9}, "max_tokens", "unsupported_parameter"),
        ("gpt-5.1", {"max_tokens": 9}, "max_tokens", "unsupported_parameter"),
        ("gpt-6.1-sol", {"temperature": 0}, "temperature", "unsupported_value"),
        ("gpt-6.1-terra", {"temperature": 0.5}, "temperature", "unsupported_value"),
        ("o4-mini", {"top_p": 0.5}, "top_p", "unsupported_parameter"),
        ("gpt-5", {"logprobs": True, "top_logprobs": 2}, "logprobs", "unsupported_parameter"),
        ("gpt-6-luna", {"stop": ["x"], "reasoning_effort": "none"}, "stop", "unsupported_parameter"),
        ("gpt-4.1-mini", {"reasoning_effort": "low"}, None, None),
        ("gpt-6-luna", {"chat_template_kwargs": {"enable_thinking": False}}, None, None),
        ("random", {"chat_template_kwargs": {"enable_thinking": False}}, None, None),
        ("local-harmony", {"reasoning_effort": "none"}, "reasoning_effort", "unsupported_value"),
    ],
)
def test_chat_models_refuse_what_the_real_ones_refuse(
    model: str, more: Json, param: str | None, code: str | None
) -> None:
    response = chat(model, **more)
    assert response["status_code"] == 400
    error = response["body"]["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-fable-5-1", "claude-sonnet-5-5", "claude-haiku-5-5"])
def test_claude_models_think_by_default_and_can_use_up_their_tokens(model: str) -> None:
    whole = message(model, max_tokens=5000)
    assert thinking(whole) >= 500
    assert [block["type"] for block in whole["message"]["content"]] == ["thinking", "text"]
    assert whole["message"]["usage"]["output_tokens"] == thinking(whole) + 5
    cut = message(model)["message"]
    assert [block["type"] for block in cut["content"]] == ["thinking"]
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 300)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("claude-haiku-5-5", DISABLED),
        ("claude-opus-5", {**DISABLED, "output_config": {"effort": "high"}}),
        ("claude-sonnet-5-5", BETWEEN_TOOLS),
        ("claude-opus-4-8", {}),
        ("claude-sonnet-4-6", {}),
        ("claude-haiku-4-5", DISABLED),
        ("echo", {"thinking": {"type": "adaptive"}}),
    ],
)
def test_claude_models_that_do_not_think_answer_at_once(model: str, more: Json) -> None:
    found = message(model, **more)
    assert thinking(found) == 0
    assert found["message"]["content"] == [{"type": "text", "text": "five words are enough here"}]


@pytest.mark.parametrize(
    ("model", "more", "error"),
    [
        ("claude-opus-5-5", DISABLED, "thinking.type.disabled is not supported"),
        ("claude-fable-5-1", BETWEEN_TOOLS, "thinking.type.between_tools is not supported"),
        ("claude-sonnet-5-5", DISABLED, "Use thinking.type.between_tools"),
        ("claude-haiku-5-5", {**DISABLED, "output_config": {"effort": "max"}}, "cannot be turned off"),
        ("claude-haiku-5-5", {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.type.enabled is not"),
        ("claude-haiku-4-5", {"thinking": {"type": "adaptive"}}, "thinking.type.adaptive is not supported"),
        ("claude-haiku-4-5", {"output_config": {"effort": "low"}}, "does not support the effort parameter"),
        ("claude-sonnet-4-6", {"output_config": {"effort": "xhigh"}}, "output_config.effort: Input should be 'low'"),
        ("claude-sonnet-4-6", {"thinking": {"type": "enabled"}}, "budget_tokens: Field required"),
        ("claude-sonnet-4-6", {"thinking": {"type": "enabled", "budget_tokens": 9}}, "greater than or equal to 1024"),
        ("claude-sonnet-4-6", {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "`max_tokens` must be greater"),
        ("claude-opus-5", {"thinking": {"type": "off"}}, "thinking.type: Input should be 'adaptive'"),
        ("claude-haiku-4-5", {"max_tokens": 64_001}, "64001 > 64000"),
    ],
)
def test_claude_models_refuse_what_the_real_ones_refuse(model: str, more: Json, error: str) -> None:
    refused = message(model, **more)
    assert refused["error"]["error"]["type"] == "invalid_request_error"
    assert error in refused["error"]["error"]["message"]


def test_only_older_claude_models_take_a_temperature() -> None:
    assert message("claude-haiku-4-5", version=OLD, temperature=0.2)["type"] == "succeeded"
    assert message("claude-haiku-5-5", version=OLD, temperature=1, **DISABLED)["type"] == "succeeded"
    assert (
        "deprecated"
        in message("claude-haiku-5-5", version=OLD, temperature=0.2, **DISABLED)["error"]["error"]["message"]
    )
    budget: Json = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 3000}
    refused = message("claude-sonnet-4-6", version=OLD, temperature=0.2, **budget)
    assert "may only be set to 1 when thinking" in refused["error"]["error"]["message"]


def test_a_budget_limits_the_thoughts_and_display_shows_them() -> None:
    found = message("claude-sonnet-4-6", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=9000)
    assert 500 <= thinking(found) <= 1024
    assert len(found["message"]["content"][0]["thinking"].split(" ")) == thinking(found)
    hidden = message("claude-opus-5-5", max_tokens=9000)["message"]["content"][0]
    assert (hidden["thinking"], hidden["signature"][:3]) == ("", "sig")
    shown = message("claude-opus-5-5", max_tokens=9000, thinking={"type": "adaptive", "display": "summarized"})
    assert shown["message"]["content"][0]["thinking"]


# How much they think.


@pytest.mark.parametrize("effort", [effort for effort in thoughts.TOKENS if effort != "none"])
def test_thoughts_have_the_tokens_of_their_effort(effort: str) -> None:
    least, most = thoughts.TOKENS[effort]
    queries = [PersonaQuery("gpt-6.1-sol", f"Question {k}", "0", 0, None, None) for k in range(500)]
    counts = [thoughts.thought_tokens(query, effort) for query in queries]
    assert least <= min(counts) < least * 1.3
    assert most / 1.3 < max(counts) <= most
    assert counts == [thoughts.thought_tokens(query, effort) for query in queries], "the same again"
    assert len(thoughts.thought_text(queries[0], most).split(" ")) == most


@given(
    st.text(max_size=30, alphabet=st.characters(exclude_categories=["Cs"])),
    st.none() | st.integers(1, 2000),
    st.sampled_from(["gpt-6.1-sol", "gpt-6-luna", "gpt-4o-mini"]),
    st.sampled_from([None, "low", "high"]),
)
def test_the_fast_answer_of_a_thinking_model_equals_the_full_answer(
    prompt: str, limit: int | None, model: str, effort: str | None
) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_completion_tokens": limit}
    body |= {"reasoning_effort": effort} if effort and model != "gpt-4o-mini" else {}
    line = json.dumps({"custom_id": "n-3-0", "method": "POST", "url": "u", "body": body}).encode()
    fast = OpenAICodec("batch", 1.5, 3, lambda _model: says("one two")).answer(line)
    full = OpenAICodec("batch", 1.5, 3, lambda _model: says("one two")).answer(line, "no such fault")
    assert fast == full


# Local models.


@pytest.mark.parametrize(
    ("model", "begins", "ends"),
    [
        ("local-think", "<think>\n", "\n</think>\n\nYes"),
        ("local-think-open", "", "\n</think>\n\nYes"),
        ("local-harmony", "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>Yes"),
        ("local-harmony-stripped", "analysis", "assistantfinalYes"),
    ],
)
def test_local_models_think_in_the_text(model: str, begins: str, ends: str) -> None:
    whole = chat(model, "Yes", max_tokens=5000)["body"]
    text = whole["choices"][0]["message"]["content"]
    assert text.startswith(begins)
    assert text.endswith(ends)
    assert begins == "" or "<think>" not in text[len(begins) :]
    assert 200 <= whole["usage"]["completion_tokens"] <= 1_510
    cut = chat(model, "Yes", max_tokens=40)["body"]["choices"][0]
    assert (cut["finish_reason"], ends.strip().split("Y")[0] in cut["message"]["content"]) == ("length", False)
    low = chat(model, "Yes", reasoning_effort="low")["body"]["usage"]["completion_tokens"]
    assert 80 <= low <= 410


@pytest.mark.parametrize("more", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}])
@pytest.mark.parametrize("model", ["local-think", "local-think-open", "local-reasoning"])
def test_local_models_can_be_told_not_to_think(model: str, more: Json) -> None:
    body = chat(model, "Yes", max_tokens=5, **more)["body"]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Yes", "refusal": None, "annotations": []}
    assert body["usage"]["completion_tokens"] == 1


def test_harmony_models_ignore_the_switch_of_other_templates() -> None:
    off: Json = {"chat_template_kwargs": {"enable_thinking": False}}
    assert "analysis" in chat("local-harmony", "Yes", **off)["body"]["choices"][0]["message"]["content"]


def test_a_reasoning_parser_moves_thoughts_to_their_own_field() -> None:
    whole = chat("local-reasoning", "Yes", max_tokens=5000)["body"]["choices"][0]["message"]
    assert whole["content"] == "Yes"
    assert len(whole["reasoning_content"].split(" ")) >= 200
    cut = [chat("local-reasoning", prompt=prompt, max_tokens=40)["body"]["choices"][0] for prompt in ("odd", "even")]
    assert [choice["message"]["content"] for choice in cut] == [None, ""]
    assert all(len(choice["message"]["reasoning_content"].split(" ")) == 40 for choice in cut)
    assert {choice["finish_reason"] for choice in cut} == {"length"}


# Names.


@pytest.mark.parametrize(
    ("name", "openai", "anthropic"),
    [
        ("gpt-6.1-sol", True, False),
        ("gpt-6.1-sol/planted/0.12", True, False),
        ("local-think/echo", True, False),
        ("claude-opus-5-5/stereotyping", False, True),
        ("planted/0.12", True, True),
        ("gpt-6.1-sol/", False, False),
        ("gpt-6.1-sol/nonsense", False, False),
        ("gpt-none", False, False),
    ],
)
def test_a_family_belongs_to_one_dialect(name: str, openai: bool, anthropic: bool) -> None:
    assert (model_exists(name, "openai"), model_exists(name, "anthropic")) == (openai, anthropic)
    assert persona_exists(name) == (openai or anthropic)
    assert is_persona(name) == (openai and anthropic)


def test_no_family_has_the_name_of_a_persona() -> None:
    assert not {*table.CHAT, *table.CLAUDE} & {name.partition("/")[0] for name in LISTED}


def test_a_family_alone_answers_as_the_chosen_persona(emulate: Emulate, emulator: Emulator) -> None:
    chosen = emulate("--persona", "echo")
    prompt = "Why?"
    query = PersonaQuery("", prompt, "0", 0, None, None)
    for server, model in ((chosen, "gpt-6.1-sol"), (emulator, "gpt-6.1-sol/echo")):
        body = server.call("POST", "/openai/v1/chat/completions", {**chat_body(prompt), "model": model}).json()
        assert body["choices"][0]["message"]["content"] == echo(query).text
        assert body["model"] == model
    other = emulator.call("POST", "/openai/v1/chat/completions", {**chat_body(prompt), "model": "claude-opus-5-5"})
    assert (other.status, other.json()["error"]["code"]) == (404, "model_not_found")


def test_an_unknown_default_persona_is_refused() -> None:
    command = [sys.executable, "-m", "batchbench", "emulate", "--persona", "gpt-6-luna"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "gpt-6-luna" in ran.stderr


# Bills.


def test_thoughts_are_billed_in_batches_and_in_synchronous_calls(emulate: Emulate) -> None:
    emulator = emulate("--price", "1,10")
    batch = emulator.wait(emulator.submit("thinks", 30, model="gpt-6.1-sol/echo", max_completion_tokens=400))
    usages = [line["response"]["body"]["usage"] for line in emulator.results(batch)]
    thoughts_used = sum(usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages)
    assert batch["usage"]["output_tokens_details"]["reasoning_tokens"] == thoughts_used
    assert batch["usage"]["output_tokens"] == sum(usage["completion_tokens"] for usage in usages)
    bill = next(line for line in emulator.events("billed") if line["batch"] == batch["id"])
    assert bill["cost"] == sum(usage["prompt_tokens"] + 10 * usage["completion_tokens"] for usage in usages)
    messages = emulator.wait(emulator.submit_messages("thinks", 30, model="claude-haiku-5-5/echo", max_tokens=900))
    answers = [line["result"]["message"] for line in emulator.results(messages)]
    assert {len(answer["content"]) for answer in answers} == {1, 2}, "some have no text"
    bill = next(line for line in emulator.events("billed") if line["batch"] == messages["id"])
    assert bill["output_tokens"] == sum(answer["usage"]["output_tokens"] for answer in answers)
    body = {**chat_body("Why?"), "model": "gpt-6.1-sol/echo"}
    usage = emulator.call("POST", "/openai/v1/chat/completions", body).json()["usage"]
    cost = emulator.events("billed")[-1]["cost"]
    assert cost == 2 * (usage["prompt_tokens"] + 10 * usage["completion_tokens"])
