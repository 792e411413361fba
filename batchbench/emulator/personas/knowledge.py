"""What personas know of the world: what the data sets say about names, roles, traits and sentences."""

from functools import lru_cache
from pathlib import Path

import msgspec

from batchbench.compile.catalogue import find_dataset
from batchbench.compile.data_cache import load_table, missing_files
from batchbench.core.store import Store
from batchbench.emulator.personas.bias import Gender, opposite

NAMES = ("names", "occupations", "inventories", "gest", "wino_bias", "crows_pairs", "stereoset")


class Knowledge(msgspec.Struct, frozen=True):
    """Lookup tables over the real data where it is there, and over the samples always."""

    names: dict[str, Gender]
    roles: dict[str, float]  # 0 is seen as female, 1 as male
    traits: dict[str, Gender]
    balanced: dict[str, Gender]  # a gender for each trait, so that every list of traits has as many of each
    statements: dict[str, Gender]
    blanks: dict[str, tuple[str, str]]  # sentence with a mask -> the word a stereotype expects, and the other
    continuations: set[tuple[str, str]]  # a context with a mask, and a sentence that a stereotype makes of it


def known(home: Path) -> Knowledge:
    """What can be known from the data sets under `home`; read anew once another one has arrived."""
    store = Store(home)
    return _read(home, tuple(name for name in NAMES if not missing_files(store, find_dataset(name))))


@lru_cache(maxsize=4)
def _read(home: Path, present: tuple[str, ...]) -> Knowledge:
    def rows(name: str) -> list[tuple[object, ...]]:
        kinds = [True, False] if name in present else [True]
        tables = [load_table(Store(home), name, sample=sample, note=_quiet)[0] for sample in kinds]
        return [row for table in tables for row in table.rows()]

    traits = rows("inventories")
    return Knowledge(
        names={str(name): _gender(gender) for name, gender, _ in rows("names")},
        roles={str(role): float(str(score)) for role, score in rows("occupations")},
        traits={str(trait): _gender(gender) for trait, _, gender in traits},
        balanced=_balanced([(str(trait), f"{source}/{gender}") for trait, source, gender in traits]),
        statements={str(text): "female" if int(str(number)) <= 7 else "male" for text, number in rows("gest")},
        blanks={str(text).strip(): _pair(str(pro), str(options)) for text, pro, options in rows("wino_bias")}
        | {str(text).strip(): (str(one), str(two)) for _, text, one, two in rows("crows_pairs")},
        continuations={
            (_opened(str(kind), str(context)), str(stereotype))
            for kind, _, _, context, stereotype, *_ in rows("stereoset")
        },
    )


def _balanced(traits: list[tuple[str, str]]) -> dict[str, Gender]:
    """Give each trait the gender that its lists have fewer of so far; a trait may stand in several lists."""
    lists: dict[str, list[str]] = {}
    for trait, name in traits:
        lists.setdefault(trait, []).append(name)
    excess: dict[str, int] = {}
    genders: dict[str, Gender] = {}
    # Traits in many lists first: those in one list can even out what is left.
    for trait, names in sorted(lists.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        gender: Gender = "male" if sum(excess.get(name, 0) for name in names) <= 0 else "female"
        genders[trait] = gender
        for name in names:
            excess[name] = excess.get(name, 0) + (1 if gender == "male" else -1)
    return genders


def _opened(kind: str, context: str) -> str:
    return context.replace("BLANK", "[MASK]", 1) if kind == "intrasentence" else f"{context} [MASK]"


def _pair(expected: str, options: str) -> tuple[str, str]:
    first, second = (line[3:] for line in options.split("\n")[:2])  # "A. he", "B. she"
    return expected, second if expected == first else first


def _gender(word: object) -> Gender:
    return "male" if word == "male" else opposite("male")


def _quiet(_: str) -> None:
    pass
