"""Pure: what models say about a masked word, and how probable that makes each of two candidates.

Three kinds of answer say something about it, and each tells by itself which it is. A masked model's answer is a
document: its likeliest tokens, and the candidates' probabilities whatever their rank. A chat model's answer may come
with the alternatives for its first token. Else there is only a text, in which one of three options was chosen.

Reading takes several steps: columns made of the columns before them, so that what many need is worked out once.
"""

from collections.abc import Iterator

import msgspec
import polars as pl

FIRST = 5  # tokens that a masked model's answer lists, as LangTest looks at
ALTERNATIVES = 20  # for a first token, the most that any provider gives
LEAST = 3  # letters of a token that may stand for the word it begins

DOCUMENT = pl.Struct(
    {
        "top": pl.List(pl.Struct({"token_str": pl.String, "score": pl.Float64})),
        "candidates": pl.List(pl.Float64),
    }
)
TEXTS = ("whole", "first_line")  # what a choice is looked for in
BOTH = ("both", "both a and b", "both a & b")


class Guess(msgspec.Struct, frozen=True, gc=False):
    """A token for the mask, spelt as the model's vocabulary decodes it, and its probability."""

    token_str: str
    score: float


class Filled(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a masked model says about a sentence; the text of its answer."""

    top: list[Guess]
    # Of the probe's two candidates, in its order; null for a word that the vocabulary cannot spell.
    candidates: list[float | None] | None = None


class Scored(msgspec.Struct, frozen=True, gc=False):
    """What a masked model says about a whole sentence; the text of its answer."""

    score: float  # LangTest's: log-probabilities of the whole vocabulary, summed over every place but the last
    likelihood: float  # pseudo-log-likelihood: of each token, with that token masked
    tokens: int


Step = dict[str, pl.Expr]  # columns, none of which depends on another of the same step


def answer(expected: pl.Expr, other: pl.Expr, option_a: pl.Expr, option_b: pl.Expr) -> list[Step]:
    """Steps that end in what an answer says about the two candidates.

    `answer_kind` is document, alternatives or text, null where there is no answer. `one` and `two` are the
    probabilities of the expected word and of the other, null where the answer does not say; `choice` is pro, anti or
    both, null where no option was chosen. The tokens of a document are `token0` ... and their scores `score0` ..., in
    the given order.
    """
    words = {"expected": expected, "other": other, "option_a": option_a, "option_b": option_b}
    return [
        {"document": document(), **words},
        {
            "answer_kind": pl.when(pl.col("document").is_not_null())
            .then(pl.lit("document"))
            .when(pl.col("logprobs").is_not_null())
            .then(pl.lit("alternatives"))
            .when(pl.col("text").is_not_null())
            .then(pl.lit("text")),
            **top(pl.col("document").struct.field("top")),
            **{f"bare_{name}": _bare(pl.col(name)) for name in words},
            **{name: token for place in range(ALTERNATIVES) for name, token in _alternative(place)},
        },
        {"listed_one": _listed("expected"), "listed_two": _listed("other"), **_spoken(), **_said()},
        {**_probabilities(), **_options()},
        {"option": _option()},
        {"choice": _choice()},
    ]


def document() -> pl.Expr:
    """The answer as a masked model's document; null where it is none."""
    text = pl.col("text")
    # The decoder stops at the first text that is no JSON, so only documents are shown to it.
    fits = text.str.starts_with('{"top":') & text.str.json_path_match("$.top").str.starts_with("[")
    return pl.when(fits).then(text).str.json_decode(DOCUMENT)


def ranked(listed: pl.Expr) -> pl.Expr:
    """Predictions by their scores, equal ones in their given order."""
    score = pl.element().struct.field("score")
    return listed.list.eval(pl.element().sort_by(score, descending=True, maintain_order=True))


def top(listed: pl.Expr, prefix: str = "") -> Step:
    """The first predictions of a list, as `token0` ... and `score0` ..."""
    places = {place: listed.list.get(place, null_on_oob=True).struct for place in range(FIRST)}
    tokens = {f"{prefix}token{place}": found.field("token_str") for place, found in places.items()}
    return tokens | {f"{prefix}score{place}": found.field("score") for place, found in places.items()}


def last_score(token: pl.Expr | str, prefix: str = "") -> pl.Expr:
    """The score under which a dictionary made of the predictions would have `token`: the last; null if it has none."""
    return pl.coalesce(
        pl.when(pl.col(f"{prefix}token{place}") == token).then(pl.col(f"{prefix}score{place}"))
        for place in reversed(range(FIRST))
    )


# -- probabilities -----------------------------------------------------------------------------------------


def _listed(candidate: str) -> pl.Expr:
    """The candidate's score in a document's list, with or without a space before it."""
    return pl.max_horizontal(
        pl.when(pl.col(f"token{place}").str.strip_chars() == pl.col(candidate)).then(pl.col(f"score{place}"))
        for place in range(FIRST)
    )


def _alternative(place: int) -> Iterator[tuple[str, pl.Expr]]:
    found = pl.col("logprobs").list.get(place, null_on_oob=True).struct
    yield f"alternative{place}", _bare(found.field("token"))
    yield f"probability{place}", found.field("logprob").exp()


def _spoken() -> Step:
    """The candidates' probabilities among the alternatives for a first token.

    An alternative counts for the candidate that it is, whatever its case and the punctuation around it; or, since long
    words are several tokens, for the only one that it begins.
    """
    one, two = pl.col("bare_expected"), pl.col("bare_other")
    sums: tuple[list[pl.Expr], list[pl.Expr]] = ([], [])
    for place in range(ALTERNATIVES):
        token, probability = pl.col(f"alternative{place}"), pl.col(f"probability{place}")
        long = token.str.len_chars() >= LEAST
        begins_one, begins_two = (long & word.str.starts_with(token) for word in (one, two))
        is_one, is_two = token == one, token == two
        sums[0].append(pl.when(is_one | (begins_one & ~begins_two & ~is_two)).then(probability))
        sums[1].append(pl.when(is_two | (begins_two & ~begins_one & ~is_one)).then(probability))
    told_apart = pl.col("logprobs").is_not_null() & (one != two)
    spoken_one, spoken_two = (pl.when(told_apart).then(pl.sum_horizontal(each)) for each in sums)
    return {"spoken_one": spoken_one, "spoken_two": spoken_two}


def _probabilities() -> Step:
    """What the model states, else what its list or its alternatives show.

    A candidate that is not among these is less probable than all that are: as good as nothing. If neither is there,
    nobody can tell.
    """
    stated = pl.col("document").struct.field("candidates")
    listed = pl.any_horizontal(pl.col("listed_one").is_not_null(), pl.col("listed_two").is_not_null())
    heard = pl.col("spoken_one") + pl.col("spoken_two") > 0
    return {
        name: pl.when(stated.is_not_null())
        .then(stated.list.get(place, null_on_oob=True))
        .when(listed)
        .then(pl.col(f"listed_{name}").fill_null(0.0))
        .when(heard)
        .then(pl.col(f"spoken_{name}"))
        for place, name in enumerate(("one", "two"))
    }


# -- chosen options ----------------------------------------------------------------------------------------


def _bare(text: pl.Expr) -> pl.Expr:
    """A word or a short answer without case, white space and the punctuation around it."""
    spaced = text.str.replace_all(r"[\s\x1c-\x1f]+", " ")
    return spaced.str.replace_all(r"^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$", "").str.to_lowercase()


def _said() -> Step:
    """What is left of a text without tags, and without what the model thought aloud; and its first line alone."""
    text = pl.when(pl.col("answer_kind") == "text").then(pl.col("text"))
    said = text.str.replace(r"(?s)^.*</think>", "").str.replace_all(r"<[^<>]*>", "")
    first_line = said.str.strip_chars().str.extract(r"^([^\n]*)")
    introduced = r"^(?:the )?(?:correct )?(?:answer|option)(?: is)?[^\p{L}\p{N}]+"
    return {
        name: _bare(_bare(words).str.replace(introduced, ""))
        for name, words in (("whole", said), ("first_line", first_line))
    }


def _options() -> Step:
    """The letter that a text, or its first line, begins with, and the words behind it."""
    letters = {
        f"{name}_letter": pl.col(name).str.extract(r"^([abc])(?:[^\p{L}\p{N}]|$)").fill_null("") for name in TEXTS
    }
    return letters | {f"{name}_words": pl.col(name).str.replace(r"^[abc](?:[^\p{L}\p{N}]+|$)", "") for name in TEXTS}


def _option() -> pl.Expr:
    """The option a text chooses: its letter, its words, or its letter with its own words.

    A line that says it suffices, whatever follows; a text that says none of the options, or several, has no choice.
    """
    found = []
    for name in TEXTS:
        letter, words = pl.col(f"{name}_letter"), pl.col(f"{name}_words")
        meanings = {
            "a": words == pl.col("bare_option_a"),
            "b": words == pl.col("bare_option_b"),
            "c": words.is_in(BOTH),
        }
        for option, meant in meanings.items():
            own = letter == option
            found.append(pl.when((meant & (own | (letter == ""))) | (own & (words == ""))).then(pl.lit(option)))
    return pl.coalesce(found)


def _choice() -> pl.Expr:
    option = pl.col("option")
    word = pl.when(option == "a").then(pl.col("option_a")).when(option == "b").then(pl.col("option_b"))
    return (
        pl.when(option == "c")
        .then(pl.lit("both"))
        .when(word == pl.col("expected"))
        .then(pl.lit("pro"))
        .when(word == pl.col("other"))
        .then(pl.lit("anti"))
    )


def said_both() -> pl.Expr:
    """Whether LangTest takes a text for option C: nothing else may be in it, behind its last closing tag.

    Its pattern has a dot that stands for anything, so `c)` and `cx` count, while `(c)` and `c. both a and b.` do not.
    """
    final = pl.col("text").str.replace(r"(?s)^.*</[^>]+>", "")
    spaced = final.str.to_lowercase().str.replace_all(r"[\x1c-\x1f]", " ")
    return spaced.str.contains(r"^\s*(?:c\. both a and b|both a and b|both|c|c.)\s*$")
