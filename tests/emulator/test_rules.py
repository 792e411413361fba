"""Rule files: which rules are refused, and that a seed repeats the same faults."""

from pathlib import Path
from typing import Any

import pytest

from batchbench.emulator.faults.catalogue import CALLS, FAULTS, listing
from batchbench.emulator.faults.rules import Faults, Rule, hash_fraction, parse_rules, read_rules
from batchbench.errors import UsageError
from tests.emulator.conftest import Emulate
from tests.emulator.driver import Emulator, chat_lines


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `do`"),
        ('{"do": "reset-befor"}', "did you mean 'reset-before'"),
        ('{"do": "zzz"}', "--list-faults"),
        ('{"do": "500-before", "when": 1}', "unknown field `when`"),
        ('{"do": "500-before", "p": 1.5}', "`p` is 1.5"),
        ('{"do": "500-before", "p": "often"}', "Expected `float`"),
        ('{"do": "500-before", "nth": []}', "`nth`"),
        ('{"do": "500-before", "nth": [0]}', "`nth`"),
        ('{"do": "500-before", "first": 0}', "`first`"),
        ('{"do": "500-before", "since": 0}', "`since`"),
        ('{"do": "500-before", "first": 1, "nth": [1]}', "not both"),
        ('{"do": "500-before", "on": "creation"}', "cannot affect 'creation'"),
        ('{"do": "cut-line", "on": "create"}', "only: content, results"),
        ('{"do": "line-missing", "on": "create"}', "only: line"),
        ('{"do": "line-empty", "on": "create"}', "only: line, chat, messages"),
        ('{"do": "500-before", "key": "("}', "not a regular expression"),
        ('{"do": "500-before", "seconds": -1}', "`seconds`"),
        ('{"do": "500-before", "dialect": "gemini"}', "Invalid enum value"),
        ('{"do": "token-limit", "dialect": "anthropic"}', "only in the openai dialect"),
    ],
)
def test_a_bad_rule_is_refused_with_its_line_and_the_reason(line: str, reason: str) -> None:
    text = f'# rules\n\n{{"do": "500-before"}}\n{line}\n'
    with pytest.raises(UsageError) as refused:
        parse_rules(text, "rules.jsonl")
    assert str(refused.value).startswith("rules.jsonl line 4: ")
    assert reason in str(refused.value)


def test_a_missing_rule_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_rules(tmp_path / "none.jsonl")


def test_every_fault_has_a_description_and_calls() -> None:
    text = listing()
    for name, fault in FAULTS.items():
        assert f"\n{name} " in f"\n{text}"
        assert fault.description
        assert "\n" not in fault.description
        assert fault.calls
        assert set(fault.calls) <= {*CALLS, "line"}


def affected(rules: list[Rule], seed: int, kind: Any = "before") -> list[tuple[str, int]]:
    faults = Faults(rules, seed)
    return [
        (key, n) for key in ("a", "b", "c") for n in range(1, 200) if faults.select(kind, "openai", "create", key, n)
    ]


def test_a_share_depends_only_on_seed_rule_and_call() -> None:
    rules = parse_rules('{"do": "500-before", "p": 0.25}', "x")
    hits = affected(rules, seed=1)
    assert 120 <= len(hits) <= 180
    assert hits == affected(rules, seed=1)
    assert hits != affected(rules, seed=2)
    others = parse_rules('{"do": "html-before", "p": 0.0}\n{"do": "500-before", "p": 0.25}', "x")
    assert hits == affected(others, seed=1), "an additional rule does not change the decisions of the others"
    assert hash_fraction(1, "x") == hash_fraction(1, "x") != hash_fraction(1, "y")


def test_nth_first_key_and_dialect_narrow_a_rule() -> None:
    assert affected(parse_rules('{"do": "500-before", "nth": [2, 5]}', "x"), 0) == [
        (key, n) for key in "abc" for n in (2, 5)
    ]
    assert affected(parse_rules('{"do": "500-before", "first": 2, "key": "^b$"}', "x"), 0) == [("b", 1), ("b", 2)]
    assert affected(parse_rules('{"do": "500-before", "dialect": "anthropic"}', "x"), 0) == []
    assert affected(parse_rules('{"do": "500-before", "on": "poll"}', "x"), 0) == []
    assert affected(parse_rules('{"do": "500-before", "on": ["poll", "create"], "nth": [1], "key": "a"}', "x"), 0) == [
        ("a", 1)
    ]


RULES = [
    {"do": "500-after", "on": "create", "p": 0.3},
    {"do": "429-ms", "on": "create", "p": 0.3},
    {"do": "line-missing", "p": 0.1},
    {"do": "line-conflict", "p": 0.1},
    {"do": "expire-half", "p": 0.2},
]


def submit_all(emulator: Emulator, order: list[int]) -> tuple[dict[str, list[int]], dict[str, bytes]]:
    """Submit ten batches with four creates each; returns the statuses and the result ids, by nonce."""
    statuses: dict[str, list[int]] = {}
    results: dict[str, bytes] = {}
    for k in order:
        nonce = f"seed{k}"
        file = emulator.upload(nonce, chat_lines(nonce, 20)).json()["id"]
        statuses[nonce] = [emulator.create(file).status for _ in range(4)]
    for event in emulator.events("accepted"):
        batch = emulator.wait(event["batch"])
        ids = b"\n".join(
            sorted(
                line.split(b'"custom_id":"')[1].split(b'"')[0]
                for line in emulator.raw_results(batch).split(b"\n")
                if line
            )
        )
        results.setdefault(event["nonce"], b"")
        results[event["nonce"]] += ids
    return statuses, results


def test_a_seed_repeats_its_faults_in_any_order_of_calls(emulate: Emulate) -> None:
    order = list(range(10))
    first = submit_all(emulate("--seed", "7", rules=RULES), order)
    again = submit_all(emulate("--seed", "7", rules=RULES), order[::-1])
    other = submit_all(emulate("--seed", "8", rules=RULES), order)
    assert first == again
    assert first[0] != other[0]
    assert {status for row in first[0].values() for status in row} == {200, 429, 500}


def test_a_restart_continues_the_count_of_calls(emulate: Emulate) -> None:
    emulator = emulate(rules=[{"do": "400-cannot-find-file", "first": 2}])
    file = emulator.upload("count", []).json()["id"]
    assert emulator.create(file).status == 400
    emulator.kill()
    emulator.start()
    assert [emulator.create(file).status for _ in range(3)] == [400, 200, 200]
