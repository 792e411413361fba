"""Rules: which fault strikes which call.

A decision is a hash of the seed, the rule, the call, its logical key and how many such calls the key has had. Neither
timing nor the order of other calls matters, so the same seed and rules play the same faults again.
"""

import difflib
import re
from hashlib import blake2b
from pathlib import Path

import msgspec

from batchbench.emulator.faults.catalogue import CALLS, FAULTS, Fault, Where
from batchbench.emulator.ledger.events import Dialect
from batchbench.errors import UsageError


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a rule file."""

    do: str
    on: str | list[str] | None = None  # calls; null = those the catalogue gives for this fault
    dialect: Dialect | None = None
    p: float = 1.0  # share of the matching calls (or lines) that are struck
    nth: list[int] | None = None  # only these calls of a key (for lines: positions in the results), from 1
    first: int | None = None  # only the first so many calls of a key (or lines)
    key: str | None = None  # regular expression that the logical key (for lines: the custom id) must match
    seconds: float | None = None
    value: str | int | None = None


class Fired(msgspec.Struct, frozen=True):
    """A fault that strikes this call."""

    fault: Fault
    seconds: float
    value: str | int | None
    n: int


class Faults:
    """The rules of one emulator."""

    def __init__(self, rules: list[Rule], seed: int) -> None:
        self._seed = seed
        self._rules: dict[Where, list[_Armed]] = {}
        seen: dict[str, int] = {}
        for rule in rules:
            # Adding a rule must not change what the others decide, so a rule is named by its fault and its rank
            # among rules of the same fault, not by its line.
            rank = seen[rule.do] = seen.get(rule.do, -1) + 1
            self._rules.setdefault(FAULTS[rule.do].where, []).append(_Armed(rule, rank))

    def any(self, where: Where) -> bool:
        return where in self._rules

    def strike(self, where: Where, dialect: Dialect, call: str, key: str, n: int) -> Fired | None:
        """The first rule of this kind that strikes the n-th call for a key."""
        for armed in self._rules.get(where, ()):
            if armed.strikes(self._seed, dialect, call, key, n):
                rule, fault = armed.rule, armed.fault
                return Fired(fault, fault.seconds if rule.seconds is None else rule.seconds, rule.value, n)
        return None


class _Armed:
    """A rule with its pattern compiled."""

    def __init__(self, rule: Rule, rank: int) -> None:
        self.rule = rule
        self.fault = FAULTS[rule.do]
        self._calls = _calls(rule)
        self._dialect = rule.dialect or self.fault.dialect
        self._key = re.compile(rule.key) if rule.key is not None else None
        self._name = f"{rule.do} {rank}"

    def strikes(self, seed: int, dialect: Dialect, call: str, key: str, n: int) -> bool:
        rule = self.rule
        return (
            call in self._calls
            and self._dialect in (None, dialect)
            and (rule.nth is None or n in rule.nth)
            and (rule.first is None or n <= rule.first)
            and (self._key is None or self._key.search(key) is not None)
            and (rule.p >= 1.0 or chance(seed, self._name, call, key, n) < rule.p)
        )


def chance(seed: int, *what: object) -> float:
    """A number in [0, 1) that depends on its arguments alone."""
    text = "\x1f".join(map(str, (seed, *what)))
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest()) / (1 << 56)


def read_rules(path: Path) -> list[Rule]:
    """The rules of a JSONL file; blank lines and lines that begin with # are skipped."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot read the fault rules ({error})") from None
    return parse_rules(text, str(path))


def parse_rules(text: str, name: str) -> list[Rule]:
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            rule = _rule(line, f"{name} line {number}")
            rules.append(rule)
    return rules


def _rule(line: str, where: str) -> Rule:
    try:
        rule = msgspec.json.decode(line, type=Rule)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: {error}") from None
    if reason := _wrong(rule):
        raise UsageError(f"{where}: {reason}")
    return rule


def _wrong(rule: Rule) -> str | None:
    """Why a rule makes no sense, or null."""
    fault = FAULTS.get(rule.do)
    if fault is None:
        near = difflib.get_close_matches(rule.do, FAULTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see `batchbench emulate --list-faults`"
        return f"unknown fault {rule.do!r} in `do`: {hint}"
    for call in _calls(rule):
        if call not in fault.calls:
            known = ", ".join(fault.calls if fault.where == "line" or call in CALLS else CALLS)
            return f"`on`: {rule.do!r} cannot strike {call!r}, only: {known}"
    if fault.dialect and rule.dialect and fault.dialect != rule.dialect:
        return f"`dialect`: {rule.do!r} exists in the {fault.dialect} dialect only"
    if not 0 <= rule.p <= 1:
        return f"`p` is {rule.p}, but a share lies between 0 and 1"
    if rule.nth is not None and (not rule.nth or min(rule.nth) < 1):
        return "`nth` is a list of numbers from 1"
    if rule.first is not None and rule.first < 1:
        return "`first` is a number from 1"
    if rule.nth is not None and rule.first is not None:
        return "give `nth` or `first`, not both"
    if rule.seconds is not None and not 0 <= rule.seconds < float("inf"):
        return f"`seconds` is {rule.seconds}, but a time is 0 or more"
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
