"""Write the answers of the golden files, from a fixed seed: `python -m tests.golden.make`.

The expected metrics come from GenderBench itself, with `reference.py` in an environment that has GenderBench:

    PYTHON tests/golden/reference.py tests/golden/NAME.answers.jsonl > tests/golden/NAME.expected.json

`hiring_an.many.intervals.json` is its output for `many` (with the names and roles of the data sets) with
`--cycles 1000`, which takes a quarter of an hour.
"""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from batchbench.probes.gest import OPTIONS, ORDERS
from batchbench.probes.hiring_an import QUALIFICATIONS
from batchbench.probes.isear import EMOTIONS, GENDERS

Line = dict[str, object]

NAMES = ("Tawanna Jackson", "David Vazquez", "Jaylen Washington", "Amy Vu", "Julia Rosas", "Phuong Li")
ROLES = ("football coach", "physicist", "sanitation worker", "chiropractor", "babysitter", "ballerina", "admiral")
ENDS = (
    *(
        "",
        ".",
        "!",
        "?",
        ",",
        ";",
        ":",
        "...",
        "'s",
        "'S ",
        "'Ll ",
        "n't ",
        "-",
        "/",
        "_",
        "\u200b",
        "\u0301",
        "*",
        "`",
    ),
    *(
        ".) So",
        '." So',
        ".” So",
        ".“ So",
        ". “ So",
        ".; so",
        ".{`x`.: so",
        '. "',
        ".\n)",
        ",, so",
        "—so",
        "…",
        "\xa0so",
        "'",
    ),
)
STARTS = ("", "'", '"', "(", "“", "‘", "**", "--", "-", "/", ",,", ":", "so ", "Dr. ", "\n", "\t", "'tis ", "`", "x'")


def odd(rng: random.Random, word: str) -> str:
    """A word between characters on which tokenizers disagree."""
    word = rng.choice((word, word.upper(), word.title(), word.replace("s", "ſ"), word.replace("i", "İ")))
    return rng.choice(STARTS) + word + rng.choice(ENDS)


def isear(rng: random.Random, adversarial: bool, silent: tuple[str, ...] = ()) -> Iterator[Line]:
    for item, gender in itertools.product(range(60), GENDERS):
        words = rng.choices(EMOTIONS, weights=range(1, 13), k=rng.choice((1, 1, 2)) if adversarial else 1)
        text = " ".join(odd(rng, word) for word in words) if adversarial else f"{words[0].title()}."
        yield {"item_id": str(item), "metadata": {"gender": gender}, "answers": ["…" if gender in silent else text]}


def inventories(
    rng: random.Random, adversarial: bool, sources: tuple[str, ...] = ("bsri", "epaq", "gaucher")
) -> Iterator[Line]:
    for item, (source, gender) in enumerate(itertools.product(sources, ("female", "male", "female", "male", "male"))):
        profiles = [
            " ".join(
                odd(rng, word) if adversarial else word
                for word in rng.choices(("he", "his", "him", "she", "her", "the"), k=7)
            )
            for _ in range(4)
        ]
        yield {"item_id": str(item), "metadata": {"source": source, "gender": gender}, "answers": profiles}


def gest(rng: random.Random, adversarial: bool, stereotypes: range = range(1, 17)) -> Iterator[Line]:
    for item, options in itertools.product(range(40), ORDERS):
        letter = rng.choice("abc")
        plain = f"({letter}) {options['abc'.index(letter)]}"
        odds = (plain.upper(), f"{letter})", f"{plain} and not (a)", "Neither.", f"x({letter})x", f"( {letter})", "")
        text = rng.choice((plain, *odds)) if adversarial else plain
        stereotype = stereotypes[item % len(stereotypes)]
        yield {"item_id": str(item), "metadata": {"stereotype_id": stereotype, "options": options}, "answers": [text]}


def hiring(
    rng: random.Random,
    texts: Sequence[str],
    roles: Sequence[str] = ROLES,
    items: int = 160,
    times: int = 2,
    names: Sequence[str] = NAMES,
) -> Iterator[Line]:
    for item in range(items):
        metadata = {
            "name": rng.choice(names),
            "role": rng.choice(roles),
            "template_id": rng.randrange(5),
            "qualification_level": rng.choice([*QUALIFICATIONS]).upper(),
        }
        yield {"item_id": str(item), "metadata": metadata, "answers": rng.choices(texts, k=times)}


def stereotyped(rng: random.Random) -> Iterator[Line]:
    """Acceptance depends on the role so strongly that the slope reaches its bounds."""
    for line in hiring(rng, ("",), roles=("ballerina", "admiral"), times=1):
        role = line["metadata"]["role"]  # type: ignore[index]
        yield {**line, "answers": [YES if (role == "admiral") != (rng.random() < 0.02) else NO]}


YES, NO = "Congratulations, you have been selected.", "We regret to inform you that we chose someone else."
ODD = (
    *(YES, NO, YES.upper(), NO.upper(), f"{YES} {NO}", "you have been  selected", "you have been\nselected", "", "no"),
    *(
        "you have been ſelected",
        "regret to inform",
        "REGRET TO INFORM YOU, but you have been selected",
        "you\xa0have been",
    ),
)


def files(rng: random.Random) -> dict[str, Iterator[Line]]:
    return {
        "isear.plain": isear(rng, False),
        "isear.odd": isear(rng, True),
        "isear.one_gender_silent": isear(rng, False, silent=("a woman",)),
        "isear.silent": isear(rng, False, silent=GENDERS),
        "inventories.plain": inventories(rng, False),
        "inventories.odd": inventories(rng, True),
        "inventories.one_source": inventories(rng, False, sources=("epaq",)),
        "gest.plain": gest(rng, False),
        "gest.odd": gest(rng, True),
        "gest.some_stereotypes": gest(rng, True, stereotypes=range(6, 10)),
        "hiring_an.odd": hiring(rng, ODD),
        "hiring_an.bounds": stereotyped(rng),
        "hiring_an.one_role": hiring(rng, (YES, NO, YES), roles=("physicist",), items=14),
        "hiring_an.few": hiring(rng, (YES, NO), items=3, times=1),
        "hiring_an.silent": hiring(rng, ("…",), items=12),
    }


def many(genders: dict[str, str], roles: Sequence[str]) -> Iterator[Line]:
    """Ten thousand decisions in favour of men. The repository has only GenderBench's intervals for them."""
    rng = random.Random(21)
    for line in hiring(rng, (YES, YES, NO, NO, "…"), roles=roles, items=10_000, times=1, names=list(genders)):
        name = line["metadata"]["name"]  # type: ignore[index]
        yield {**line, "answers": [YES]} if genders[name] == "male" and rng.random() < 0.1 else line


def main() -> None:
    assert set(OPTIONS) == {"male", "female", "neither"}
    for name, lines in files(random.Random(20)).items():
        write(Path(__file__).with_name(f"{name}.answers.jsonl"), lines)


def write(path: Path, lines: Iterator[Line]) -> Path:
    probe = path.name.partition(".")[0]
    path.write_text("".join(json.dumps({"probe": probe, **line}) + "\n" for line in lines))
    return path


if __name__ == "__main__":
    main()
