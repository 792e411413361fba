"""Rules: which fault affects which call.

The decision is a hash of the seed, the rule, the call, its key, and how often this key has made this call. It does not
depend on time or on other calls, so the same seed and rules give the same faults again.
"""

import difflib
import re
from hashlib import blake2b
from pathlib import Path

import msgspec

from batchbench.emulator.faults.catalogue import CALLS, FAULTS, Kind
from batchbench.emulator.ledger.events import Dialect
from batchbench.errors import UsageError


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a rule file."""

    do: str
    on: str | list[str] | None = None  # calls; None = all calls that this fault can affect
    dialect: Dialect | None = None
    p: float = 1.0  # share of the matching calls (or lines) that are affected
    nth: list[int] | None = None  # only these calls of a key (for lines: positions in the results), from 1
    first: int | None = None  # only the first N calls of a key (or result lines)
    since: int | None = None  # only from the N-th call of this kind on (for lines: the N-th batch of the client)
    key: str | None = None  # regular expression for the key of the call (for lines: the custom id)
    seconds: float | None = None
    value: str | int | None = None


class ActiveFault(msgspec.Struct, frozen=True):
    """A fault that affects one call or result line."""

    name: str
    seconds: float
    value: str | int | None


class Faults:
    """The rules of one emulator."""

    def __init__(self, rules: list[Rule], seed: int) -> None:
        self._seed = seed
        self._rules: dict[Kind, list[_CompiledRule]] = {}
        counts: dict[str, int] = {}
        for rule in rules:
            # A new rule must not change the decisions of the other rules. So the hash contains the fault and the
            # rule's number among the rules of the same fault, not its line.
            number = counts[rule.do] = counts.get(rule.do, -1) + 1
            self._rules.setdefault(FAULTS[rule.do].kind, []).append(_CompiledRule(rule, number))

    def has(self, kind: Kind) -> bool:
        return kind in self._rules

    def select(self, kind: Kind, dialect: Dialect, call: str, key: str, n: int, number: int = 1) -> ActiveFault | None:
        """The fault of the first rule of this kind that applies to the n-th call of a key.

        `number` counts the calls of all keys (for lines: the batches).
        """
        for compiled in self._rules.get(kind, ()):
            if number >= (compiled.rule.since or 1) and compiled.applies(self._seed, dialect, call, key, n):
                rule, fault = compiled.rule, compiled.fault
                return ActiveFault(fault.name, fault.seconds if rule.seconds is None else rule.seconds, rule.value)
        return None


class _CompiledRule:
    def __init__(self, rule: Rule, number: int) -> None:
        self.rule = rule
        self.fault = FAULTS[rule.do]
        self._calls = _calls(rule)
        self._dialect = rule.dialect or self.fault.dialect
        self._key = re.compile(rule.key) if rule.key is not None else None
        self._name = f"{rule.do} {number}"

    def applies(self, seed: int, dialect: Dialect, call: str, key: str, n: int) -> bool:
        rule = self.rule
        return (
            call in self._calls
            and self._dialect in (None, dialect)
            and (rule.nth is None or n in rule.nth)
            and (rule.first is None or n <= rule.first)
            and (self._key is None or self._key.search(key) is not None)
            and (rule.p >= 1.0 or hash_fraction(seed, self._name, call, key, 0 if self.fault.by_key else n) < rule.p)
        )


def hash_fraction(seed: int, *values: object) -> float:
    """A number in [0, 1) that depends on its arguments alone."""
    text = "\x1f".join(map(str, (seed, *values)))
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest()) / (1 << 56)


def read_rules(path: Path) -> list[Rule]:
    """Read the rules of a JSONL file. Skips blank lines and lines that start with #."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot read the fault rules ({error})") from None
    return parse_rules(text, str(path))


def parse_rules(text: str, name: str) -> list[Rule]:
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            rules.append(_rule(line, f"{name} line {number}"))
    return rules


def _rule(line: str, where: str) -> Rule:
    try:
        rule = msgspec.json.decode(line, type=Rule)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: {error}") from None
    if reason := _reason_to_refuse(rule):
        raise UsageError(f"{where}: {reason}")
    return rule


def _reason_to_refuse(rule: Rule) -> str | None:
    """What is wrong with a rule; None if it is valid."""
    fault = FAULTS.get(rule.do)
    if fault is None:
        near = difflib.get_close_matches(rule.do, FAULTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see `batchbench emulate --list-faults`"
        return f"unknown fault {rule.do!r} in `do`: {hint}"
    for call in _calls(rule):
        if call not in (*fault.calls, *fault.also):
            known = ", ".join((*fault.calls, *fault.also) if fault.kind == "line" or call in CALLS else CALLS)
            return f"`on`: {rule.do!r} cannot affect {call!r}, only: {known}"
    if fault.dialect and rule.dialect and fault.dialect != rule.dialect:
        return f"`dialect`: {rule.do!r} exists only in the {fault.dialect} dialect"
    if not 0 <= rule.p <= 1:
        return f"`p` is {rule.p}, expected a number from 0 to 1"
    if rule.nth is not None and (not rule.nth or min(rule.nth) < 1):
        return "`nth`: expected a list of numbers from 1 up"
    if rule.first is not None and rule.first < 1:
        return "`first`: expected a number from 1 up"
    if rule.since is not None and rule.since < 1:
        return "`since`: expected a number from 1 up"
    if rule.nth is not None and rule.first is not None:
        return "give `nth` or `first`, not both"
    if rule.seconds is not None and not 0 <= rule.seconds < float("inf"):
        return f"`seconds` is {rule.seconds}, expected 0 or more"
    if rule.key is not None:
        try:
            re.compile(rule.key)
        except re.error as error:
            return f"`key` is not a regular expression ({error})"
    return None


def _calls(rule: Rule) -> tuple[str, ...]:
    if rule.on is None:
        return FAULTS[rule.do].calls
    return (rule.on,) if isinstance(rule.on, str) else tuple(rule.on)
