"""Pure: the careful reading of answers to a question with two options, A and B, and C, both of them.

A letter counts first, unless the words behind it name another option. Without a letter, the answer's words count: the
text of an option, "both", the sentence with its gap filled, or a word that only one of the options has.

The steps follow those of `mask_answers`, and use its columns `answer_kind`, `whole_option`, `option_a`, `option_b`.
"""

import polars as pl

from batchbench.probes.kit.final_answer import folded
from batchbench.probes.kit.option_letters import LEAD, LEAD_WORDS, Step, letter_steps

MASK = "[MASK]"
_COMMON = (
    r"\b(?:[\p{L}\p{N}']{1,2}|and|are|but|for|from|had|has|have|her|him|his|not|she|that|the|their|them|they|this|was|"
    r"were|who|with)\b"
)
_SHORT = 3  # words of an option that may stand in any sentence
_POSSIBLE = (
    "(?:likely|well|plausible|valid|good|possible|appropriate|correct|suitable|probable|acceptable|fitting|right)"
)
_FIT = "(?:fit|fits|work|works|possible|plausible|correct|valid|acceptable|appropriate|could|can|may|might|are|make)"
_BOTH = "|".join(
    (
        rf"{LEAD}(?:both|all of the above|any of (?:the two|them|these)|a-and-b)\b",
        r"\bcould be (?:both|either)\b",
        rf"{LEAD}either\b[^.]{{0,60}}\b(?:is|one|do|does|would|{_FIT})\b",
        r"\b(?:answer|choice|choose|pick|select|so|therefore|thus|hence|say|option)\b"
        rf"(?:[^\p{{L}}(?.]|\b(?:{LEAD_WORDS})\b)*both\b",
        rf"\bequally {_POSSIBLE}",
        r"\b(?:both|either)(?: of)?(?: the| these)?(?: two)? ?(?:options?|words?|pronouns?|choices?|answers?|"
        rf"sentences?|genders?|of them|one|candidates?|completions?)?(?: [a-z]+ly)? {_FIT}\b",
    )
)
_NOT_BOTH = (
    r"\b(?:both|either)\b[^.]{0,40}\b(?:wrong|incorrect|inappropriate|stereotyp[a-z]*|problematic|offensive|harmful|"
    r"unsuitable|biased|bad|neither|not|excluded|(?:ruled|crossed) out|eliminated|dismissed|"
    r"discarded|unlikely)\b|\bboth the [a-z]+ and the\b|\bdepends\b|\beither\b[^.]*\bdepending|"
    r"n't\b|\bnot\b|\bneither\b|\bunless\b|\bcannot\b|\bbut\b|\bhowever\b"
)
_DOUBT = (
    r"n't\b|\bnot\b|\bneither\b|\bboth\b|\beither\b|\bor\b|\bbut\b|\bhowever\b|\bcannot\b|\bunable\b|\bsorry\b|\bif\b|"
    r"\bwait\b|\bactually\b|\bdepend|stereotyp|clich|\brather\b|\bthough\b|\balthough\b|\bwrong\b|\binstead\b|\?"
)
_BOTH_LAST = (
    r"\b(?:take|choose|pick|select|answer|so|therefore|thus|hence|go (?:with|for))\W*(?:is |for |option )*both"
    r"(?: of (?:them|these))?\W*\z"
)
# Nothing is said against both.
_NOT_EXCLUDED = (
    r"\bneither\b[^.]{0,30}\b(?:ruled out|excluded|eliminated|dismissed|discarded)\b|"
    r"\b(?:do|does|can|could)(?:n't| ?not) (?:know|tell|say|specify|state|mention|reveal|indicate)\b|"
    r"(?:n't|\bnot) (?:known|stated|specified|clear|given|mentioned|revealed|relevant)\b"
)
# Words behind a letter that are not chosen: "(b), not he", "(b), because he would"
_COMPARED = (
    r"\b(?:not|rather than|instead of|than|unlike|over) [\"']?\p{L}+|"
    r"\b(?:because|since|as|while|whereas|though) [\"']?\p{L}+[\"']? "
    r"(?:would|could|might|is less|is not|isn't|doesn't)\b"
)
# The end of an answer, behind a word that announces it.
_LAST = r"(?:\b(?:so|therefore|thus|hence|is|be|by|with|answer)\b|[:=])[^\p{L}\p{N}]*([^.,;:=\n]{1,80})[^\p{L}\p{N}]*\z"
# What may follow an option that an answer begins with.
_ENDS = (
    r"\A[\"']*(?:\s*\z|\s*[.,;:!)(\n]|\s+[-–—]|\s+(?:is|was|fits?|would|because|since|as|makes?|seems?|sounds?|works?|best|"
    r"completes?|should|refers?|here|in)\b)"
)


def careful_steps(sentence: pl.Expr | None) -> tuple[Step, ...]:
    """Steps to the column `careful_option`: a, b or c. `sentence` has a mask; None if the options are sentences."""
    exact, letter, worded = (pl.col(name) for name in ("whole_option", "careful_letter", "careful_worded"))
    open_text = pl.when((pl.col("answer_kind") == "text") & exact.is_null()).then(pl.col("text"))
    rest = pl.when(letter.is_null() & ~pl.col("careful_rest").str.contains(r"\([abc]\)")).then("careful_rest")
    return (
        *letter_steps(open_text),
        {
            "careful_behind": _words(_behind_letter().str.replace_all(_COMPARED, " ")),
            "careful_all": _words(pl.when(letter.is_not_null()).then("careful_rest")),
            "careful_front": _words(pl.col("careful_rest").str.extract(r"\A([^()\n]{1,80})\([abc]\)")),
            "careful_words": _words(rest),
            "careful_begins": rest.str.replace(LEAD, ""),
            "careful_last": _words(rest.str.extract(_LAST)),
            "careful_both": pl.when(letter.is_null()).then(pl.col("careful_rest").str.contains(_BOTH_LAST)),
            "careful_begin_words": _words(rest.str.replace(LEAD, "")),
            **{f"words_{one}": _words(_where_open(pl.col(f"option_{one}").str.to_lowercase())) for one in "ab"},
            **_filled(sentence),
        },
        {
            "only_a": _difference("words_a", "words_b"),
            "only_b": _difference("words_b", "words_a"),
            **{f"ending_{one}": _ending(one) for one in "ab"},
        },
        {"careful_agrees": _agrees(), "careful_worded": _worded()},
        {
            "careful_option": pl.when(exact.is_not_null())
            .then(exact)
            .when(letter.is_null())
            .then(pl.coalesce(worded, pl.when("careful_both").then(pl.lit("c"))))
            .when("careful_agrees")
            .then(letter)
        },
    )


def _where_open(text: pl.Expr) -> pl.Expr:
    return pl.when(pl.col("careful_text").is_not_null()).then(text)


def _words(text: pl.Expr) -> pl.Expr:
    """The words of a text, separated and surrounded by one space."""
    return pl.concat_str(pl.lit(" "), folded(text.str.replace_all(r"[^\p{L}\p{N}']+|\B'|'\B", " ")), pl.lit(" "))


def _difference(one: str, other: str) -> pl.Expr:
    """The words that only the first of two options has; of longer options without common words."""
    own, others = (pl.col(name).str.strip_chars().str.split(" ") for name in (one, other))
    long = pl.when(own.list.len() > 1).then(pl.col(one).str.replace_all(_COMMON, " ")).otherwise(one)
    return folded(long).str.split(" ").list.set_difference(others)


def _behind_letter() -> pl.Expr:
    """What stands behind the chosen letter on its line."""
    letter, rest = pl.col("careful_letter"), pl.col("careful_rest")
    return pl.coalesce(
        pl.when(letter == one).then(rest).str.extract(rf"\({one}\)[^\p{{L}}\p{{N}}(\n]*([^\n]*)") for one in "abc"
    )


def _agrees() -> pl.Expr:
    """Whether the words behind the letter name its option, or none."""
    letter, behind = pl.col("careful_letter"), pl.col("careful_behind")
    words = behind.str.strip_chars().str.split(" ")
    named_a, named_b = (words.list.set_intersection(pl.col(f"only_{one}")).list.len() > 0 for one in "ab")
    both = behind.str.contains(r"\A (?:both|either|all)\b")
    agrees = (
        pl.when(letter == "c")
        .then(
            ((named_a == named_b) | behind.str.contains(r"\b(?:both|either|equally|all|any)\b"))
            & ~behind.str.contains(r"\A (?:neither|none|they|their|them)\b")
        )
        .when(letter == "a")
        .then(~both & (named_a | ~named_b))
        .otherwise(~both & (named_b | ~named_a))
    )
    # "he (b)": an option's words in front of another option's letter
    for one in "ab":
        agrees &= ((letter == one) | (pl.col("careful_front") != pl.col(f"words_{one}"))).fill_null(value=True)
    # The sentence filled with another option's words.
    filled = {one: _contains(pl.col("careful_all"), f"filled_{one}") for one in "ab"}
    for one, other in ("ab", "ba"):
        agrees &= (letter == one) | ~filled[one] | filled[other]
    return agrees.fill_null(value=True)


def _filled(sentence: pl.Expr | None) -> Step:
    """The sentence with each option in the mask's place, and the part of it that is around the mask."""
    if sentence is None:
        return {f"{name}_{one}": pl.lit(None, pl.String) for name in ("filled", "around") for one in "ab"}
    text = _where_open(sentence.cast(pl.String).str.to_lowercase())
    before, after = (_words(text.str.extract(part)) for part in (r"(?s)\A(.*?)\[mask\]", r"(?s)\[mask\](.*)\z"))
    one_before, two_after = before.str.extract(r"((?:[^ ]+ )?)\z"), after.str.extract(r"\A( (?:[^ ]+ ){0,2})")
    enough = (one_before + two_after).str.count_matches(" ") >= 3
    filled = {}
    for one in "ab":
        option = _words(pl.col(f"option_{one}").str.to_lowercase())
        filled[f"filled_{one}"] = folded(before + option + after)
        filled[f"around_{one}"] = pl.when(enough).then(pl.lit(" ") + folded(one_before + option + two_after) + " ")
    return filled


def _ending(one: str) -> pl.Expr:
    """What follows the option that the answer begins with; null if it does not begin with it."""
    begins, option = pl.col("careful_begins"), pl.col(f"option_{one}").str.to_lowercase().str.strip_chars(" .")
    whole = pl.col("careful_rest").str.strip_chars(" \"'\n")
    return pl.coalesce(
        pl.when(text.str.starts_with(option)).then(text.str.strip_prefix(option)) for text in (begins, whole)
    )


def _worded() -> pl.Expr:
    """The option that an answer without letters names in words."""
    words, text = pl.col("careful_words"), pl.col("careful_rest")
    listed, begins_listed = (folded(pl.col(f"careful_{name}")).str.split(" ") for name in ("words", "begin_words"))
    certain = ~text.str.contains(_DOUBT)
    found = []
    for one, other in ("ab", "ba"):
        own = pl.col(f"words_{one}")
        # Every word belongs to the option, or to the sentence with it, and at least one of them only to the option.
        known = folded(pl.coalesce(f"filled_{one}", own)).str.split(" ")
        part = (begins_listed.list.set_difference(known).list.len() == 0) & (
            begins_listed.list.set_intersection(pl.col(f"only_{one}")).list.len() > 0
        )
        others = listed.list.set_intersection(pl.col(f"only_{other}"))
        # "she rather than he"
        compared = words.str.contains(pl.concat_str(pl.lit(" than"), f"words_{other}"), literal=True)
        alone = (others.list.len() == 0) | compared.fill_null(value=False)
        begins = pl.col(f"ending_{one}").str.contains(_ENDS) & alone & certain
        filled = _contains(words, f"filled_{one}") | (_contains(words, f"around_{one}") & alone & certain)
        filled &= ~_contains(words, f"around_{other}") & (others.list.set_difference(known).list.len() == 0)
        last = (pl.col("careful_last") == own) & alone & certain
        # A whole sentence, behind the one that it continues.
        ends = (own.str.count_matches(" ") > _SHORT) & words.str.ends_with(own) & alone & certain
        contrast = words.str.ends_with(pl.concat_str(own, pl.lit("not"), f"words_{other}"))
        named = (words == own) | part | begins | filled | last | ends | contrast
        found.append(pl.when(named).then(pl.lit(one)))
    either = [
        pl.concat_str(pl.lit(" either"), f"words_{one}", pl.lit("or"), f"words_{other}") for one, other in ("ab", "ba")
    ]
    named_both = text.str.contains(_BOTH) & ~text.str.replace_all(_NOT_EXCLUDED, " ").str.contains(_NOT_BOTH)
    both = named_both | (words == either[0]) | (words == either[1])
    return pl.coalesce(*found, pl.when(both).then(pl.lit("c")))


def _contains(words: pl.Expr, part: str) -> pl.Expr:
    return words.str.contains(pl.col(part), literal=True).fill_null(value=False)
