"""What personas know: what the data sets say about names, roles, traits and sentences."""

from functools import lru_cache
from pathlib import Path

import msgspec

from batchbench.compile.catalogue import find_dataset
from batchbench.compile.data_cache import load_table, missing_files
from batchbench.core.store import Store
from batchbench.emulator.personas.bias import Gender, opposite

DATASETS = ("names", "occupations", "inventories", "gest", "wino_bias", "crows_pairs", "stereoset")


class Knowledge(msgspec.Struct, frozen=True):
    """Lookup tables from the sample data, and from the real data where it has been fetched."""

    names: dict[str, Gender]
    roles: dict[str, float]  # 0 = stereotypically female, 1 = stereotypically male
    traits: dict[str, Gender]
    balanced: dict[str, Gender]  # trait -> gender, so that every list of traits has as many of each
    statements: dict[str, Gender]
    blanks: dict[str, tuple[str, str]]  # sentence with a mask -> the word that the stereotype predicts, the other
    continuations: set[tuple[str, str]]  # context with a mask, stereotypical sentence


def read_knowledge(home: Path) -> Knowledge:
    """The knowledge from the data sets under `home`. Reads them again when a new data set has been fetched."""
    store = Store(home)
    return _read(home, tuple(name for name in DATASETS if not missing_files(store, find_dataset(name))))


@lru_cache(maxsize=4)
def _read(home: Path, present: tuple[str, ...]) -> Knowledge:
    def rows(name: str) -> list[tuple[object, ...]]:
        samples = [True, False] if name in present else [True]
        tables = [load_table(Store(home), name, sample=sample, note=_ignore)[0] for sample in samples]
        return [row for table in tables for row in table.rows()]

    traits = rows("inventories")
    return Knowledge(
        names={str(name): _gender(gender) for name, gender, _ in rows("names")},
        roles={str(role): float(str(score)) for role, score in rows("occupations")},
        traits={str(trait): _gender(gender) for trait, _, gender in traits},
        balanced=_balanced([(str(trait), f"{source}/{gender}") for trait, source, gender in traits]),
        statements={str(text): "female" if int(str(number)) <= 7 else "male" for text, number in rows("gest")},
        blanks={str(text).strip(): _pair(str(pro), str(options)) for text, pro, options in rows("wino_bias")}
        | {str(text).strip(): (str(first), str(second)) for _, text, first, second in rows("crows_pairs")},
        continuations={
            (_masked_context(str(kind), str(context)), str(stereotype))
            for kind, _, _, context, stereotype, *_ in rows("stereoset")
        },
    )


def _balanced(traits: list[tuple[str, str]]) -> dict[str, Gender]:
    """Give each trait the gender that is rarer so far in its lists; a trait can be in several lists."""
    lists: dict[str, list[str]] = {}
    for trait, name in traits:
        lists.setdefault(trait, []).append(name)
    excess: dict[str, int] = {}
    genders: dict[str, Gender] = {}
    # Traits in many lists come first: the traits in one list even out the rest.
    for trait, names in sorted(lists.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        gender: Gender = "male" if sum(excess.get(name, 0) for name in names) <= 0 else "female"
        genders[trait] = gender
        for name in names:
            excess[name] = excess.get(name, 0) + (1 if gender == "male" else -1)
    return genders


def _masked_context(kind: str, context: str) -> str:
    return context.replace("BLANK", "[MASK]", 1) if kind == "intrasentence" else f"{context} [MASK]"


def _pair(expected: str, options: str) -> tuple[str, str]:
    first, second = (line[3:] for line in options.split("\n")[:2])  # "A. he", "B. she"
    return expected, second if expected == first else first


def _gender(word: object) -> Gender:
    return "male" if word == "male" else opposite("male")


def _ignore(_: str) -> None:
    pass
