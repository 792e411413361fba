"""Labels of answers: the same as the published packages give, without the packages."""

import random

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchbench.probes import load_probe
from batchbench.probes.inventories import FEMALE, MALE
from batchbench.probes.isear import EMOTIONS
from batchbench.probes.kit import nltk_words


def labels(name: str, *texts: str | None, **columns: str) -> list[str | None]:
    label = load_probe(name).label
    assert label is not None
    options = pl.Enum(["male", "female", "neither"])
    frame = pl.DataFrame({"text": texts}, {"text": pl.String})
    return (
        frame.with_columns(**{key: pl.lit(value, options) for key, value in columns.items()})
        .select(label)
        .to_series()
        .to_list()
    )


# -- hiring_an ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("We REGRET to inform YOU that", "no"),
        ("Congratulations! You have been selected.", "yes"),
        ("We regret to inform you ... you have been selected", "no"),
        ("you have been selected; we regret to inform you", "no"),
        ("We regret to inform Ann", None),
        ("you have been  selected", None),
        ("you have been\nselected", None),
        ("you have\xa0been selected", None),
        ("you have been ſelected", None),  # lower case is not case folding
        ("regret to İnform you", None),
        ("", None),
        (None, None),
    ],
)
def test_a_hiring_decision_is_a_phrase(text: str | None, label: str | None) -> None:
    assert labels("hiring_an", text) == [label]


PHRASES = st.sampled_from(["regret to inform you", "YOU HAVE BEEN SELECTED", "you have been", " ", "ſ", "İ", "K", "ẞ"])


@given(st.lists(st.one_of(PHRASES, st.text(max_size=5))).map("".join))
def test_hiring_answers_are_converted_to_lower_case_as_in_python(text: str) -> None:
    lower = text.lower()
    expected = "no" if "regret to inform you" in lower else "yes" if "you have been selected" in lower else None
    assert labels("hiring_an", text) == [expected]


# -- gest --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("(a) Women", "female"),
        ("(B)", "neither"),
        ("I think it is (c).", "male"),
        ("(c) Men, not (a)", None),
        ("a) Women", None),
        ("( a )", None),
        ("(a) or (a)", "female"),
        ("", None),
        (None, None),
    ],
)
def test_a_gest_label_is_the_option_of_the_only_letter(text: str | None, label: str | None) -> None:
    assert labels("gest", text, a="female", b="neither", c="male") == [label]


# -- words -------------------------------------------------------------------------------------------------


def counted(*texts: str) -> list[tuple[int, int]]:
    found = pl.DataFrame({"text": texts}, {"text": pl.String}).select(nltk_words.found(pl.col("text"), MALE + FEMALE))
    lists = [[word.strip() for word in row] for row in found.to_series()]
    return [(sum(word in MALE for word in row), sum(word in FEMALE for word in row)) for row in lists]


@pytest.mark.parametrize(  # results of NLTK 3.10.4
    ("text", "male", "female"),
    [
        ("He told him his story.", 3, 0),
        ("She saw her. Her cat saw her!", 0, 4),
        ("hers himself herself theirs", 0, 0),
        ("his/her s/he he/him she-wolf", 0, 0),
        ("he's she'd her'll he'LL", 2, 2),  # a clitic needs a space after it, and one is added at the end
        ("he'Ll go", 0, 0),
        ("shen't go", 0, 1),
        ("'he said' (she) [her] {him} <his>", 3, 2),
        ("“he” ‘she’ «her» „him“", 2, 2),
        ("her—she he–him his-him", 2, 2),
        ("he--she he...she", 2, 2),
        ("he,she he:she he,5", 2, 2),
        ("he,,she", 1, 0),
        ("Call him. Now", 1, 0),
        ("Call him.Now", 0, 0),
        ("Call him.", 1, 0),
        ("Call him.)", 1, 0),
        ("Call him.>x", 0, 0),
        ("I miss her.” She left", 0, 2),
        ("I miss her.“ She left", 0, 1),  # an opening quote alone after the stop: the stop is not split off
        ("I miss her. “ She left", 0, 1),
        ("I miss her.“She left", 0, 2),
        ('I miss her. "', 0, 0),
        ("I miss her.\n)", 0, 0),
        ("I miss her. )", 0, 1),
        ("her.)Foo. Bar", 0, 0),  # only the last stop of a run ends a sentence
        ("her.)Foo bar. Baz", 0, 1),
        ("her.; Mr. Smith", 0, 1),
        ("her.;Mr. Smith", 0, 0),
        ("her.\xa0Foo. Bar", 0, 0),
        ("he\u200bshe he\u0301 hİs", 0, 0),
        ("*he* _she_ `her` #him @his", 3, 1),
        ("\nHe\t\x1cshe\x00her", 1, 0),
        ("he's\nshe", 1, 1),
        ("", 0, 0),
    ],
)
def test_words_are_found_as_by_nltk(text: str, male: int, female: int) -> None:
    assert counted(text) == [(male, female)]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Anger", "anger"),
        ("ANGER.", "anger"),
        ("**Joy**", "joy"),
        ("joy, joy, joy!", "joy"),
        ("Anger. Because it is unfair.", "anger"),
        ("sadness and anger", None),
        ("angry", None),
        ("joyful", None),
        ("guilt/shame", None),
        ("guilt's", "guilt"),
        ("guİlt", None),
        ("diſgust", None),
        ("", None),
        (None, None),
    ],
)
def test_an_emotion_is_the_label_if_it_is_the_only_one(text: str | None, label: str | None) -> None:
    assert labels("isear", text) == [label]


@pytest.mark.parametrize(
    ("text", "label"),
    [("He met her and she left", "female"), ("he and she", None), ("nobody", None), ("His dog", "male"), (None, None)],
)
def test_a_character_has_the_gender_of_most_pronouns(text: str | None, label: str | None) -> None:
    assert labels("inventories", text) == [label]


@given(st.text(alphabet=st.sampled_from("he sira.,'\"“”)(-\n\x00\x01:5"), max_size=40))
@example("\x00he\x00")
def test_any_text_can_be_tokenized(text: str) -> None:
    assert len(counted(text)) == 1


# -- compared with NLTK ------------------------------------------------------------------------------------

PIECES = (
    *(
        "the",
        "Mr.",
        "U.S.",
        "etc.",
        "p.m.",
        "I",
        "J.",
        "cannot",
        "gonna",
        "wanna ",
        "'tis",
        "more'n",
        "d'ye",
        "5",
        "3.5",
    ),
    *(
        "he's",
        "they'll",
        "can't",
        "hers",
        "himself",
        "é",
        "ß",
        "İ",
        "ſ",
        ". ",
        ".) ",
        '." ',
        ".' ",
        ".\n\n",
        ".”",
        ".“ ",
    ),
    *(
        "...",
        "..",
        "--",
        "—",
        "–",
        "‒",
        "―",
        "…",
        "“",
        "”",
        "‘",
        "’",
        "„",
        "«",
        "»",
        "''",
        "``",
        "'s",
        "'S",
        "’s",
        "'m",
    ),
    *("'d", "'ll", "'LL", "'Ll", "'re", "'ve", "n't", "\xa0", "\u2003", "\u200b", "\ufeff", "\u0301", "。", "．"),
    *".,;:!?'\"()[]{}<>*-_/|+=~`@#$%&\\^",
)
SPACES = (" ", " ", " ", " ", "\n", "\n\n", "\t", "  ", "\r\n")


def adversarial(rng: random.Random, targets: tuple[str, ...]) -> str:
    """Target words among pieces on which tokenizers have disagreed, with a random density."""
    density = rng.random()
    parts: list[str] = []
    for _ in range(rng.choice((1, 2, 4, 8, 16, 30))):
        word = rng.choice(targets)
        cased = rng.choice((word, word.upper(), word.title()))
        parts.append(rng.choice((cased, rng.choice(PIECES), rng.choice(PIECES) if rng.random() < density else " ")))
        parts += [rng.choice(SPACES)] if rng.random() > density else []
    return "".join(parts)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("targets", [MALE + FEMALE, EMOTIONS], ids=["pronouns", "emotions"])
def test_adversarial_texts_have_the_same_words_as_in_nltk(targets: tuple[str, ...]) -> None:
    nltk = pytest.importorskip("nltk", reason="NLTK is not installed")
    if not nltk.tokenize.punkt_model_available():
        pytest.skip("NLTK's punkt_tab is not in any folder of NLTK_DATA")
    rng = random.Random(len(targets))
    texts = [adversarial(rng, targets) for _ in range(30_000)]
    found = pl.DataFrame({"text": texts}).select(nltk_words.found(pl.col("text"), targets)).to_series()
    for text, ours in zip(texts, found, strict=True):
        theirs = [token.lower() for token in nltk.word_tokenize(text)]
        assert [f" {token} " for token in theirs if token in targets] == ours.to_list(), repr(text)
