r"""Pure: how phrases are written as regular expressions, for texts in lower case.

A space stands for white space of any length, line breaks too, and ` ?` for as much or none; `\w` for a character inside
a word, `\b` for the boundary of an English word, `\W` for any character that is no English letter or digit.
"""

from collections.abc import Iterable

import polars as pl

_MEANINGS = {" ?": r"\s*", " ": r"\s+", r"\b": r"(?-u:\b)", r"\w": r"[^\s.,;:!?()\[\]\"/]", r"\W": "[^a-z0-9]"}


def any_of(*phrases: str) -> str:
    """A pattern that matches each of the phrases."""
    return f"(?:{'|'.join(phrases)})"


def regex(phrase: str) -> str:
    """The regular expression of a phrase."""
    for written, meant in _MEANINGS.items():
        phrase = phrase.replace(written, meant)
    return phrase


def contains(text: pl.Expr, *phrases: str) -> pl.Expr:
    """Whether the text contains one of the phrases."""
    return text.str.contains(regex(any_of(*phrases)))


def count(text: pl.Expr, *phrases: str) -> pl.Expr:
    """How often the text contains one of the phrases."""
    return text.str.count_matches(regex(any_of(*phrases)))


def substituted(text: pl.Expr, rules: Iterable[tuple[str, str]]) -> pl.Expr:
    """The text after each phrase of the rules was replaced, in their order."""
    for phrase, replacement in rules:
        text = text.str.replace_all(regex(phrase), replacement)
    return text
