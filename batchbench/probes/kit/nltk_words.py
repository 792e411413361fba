"""Pure: find English words in a text exactly as NLTK's word_tokenize (3.10.2 and later) does.

Published figures use that tokenizer. This module reproduces its results without NLTK and its data, by the same
substitutions in the same order. The substitutions put spaces between tokens. Contractions such as `gonna` and the
spelling of quotation marks are left out, because they never change whether one of our words is a token.

Sentence ends matter only because NLTK splits the full stop at a sentence end off the word before it. NLTK's Punkt model
decides which full stops end a sentence. None of our words is an abbreviation. For such words, it is the last stop of a
run without white space, if punctuation or white space follows. Closing quotes and brackets alone after the stop belong
to the sentence. If an opening quote is among them, the stop is not split off.
"""

from collections.abc import Sequence

import polars as pl

END = "\x00"  # inserted where a sentence ends
SPACE = r" \t\n\r\x0b\x0c"  # characters that end a run for Punkt
AFTER_STOP = r""")";}\]*:@'({\[‘’“”«»?!"""  # a stop before one of these ends a sentence
CLOSING = r""""')\]}‘’“”«»"""  # these belong to the sentence before them
FINAL = rf"(\s*(?:{END}|$))"


def tokens(text: pl.Expr, words: Sequence[str]) -> pl.Expr:
    """The text in lower case, with spaces on both sides of every token that is one of `words`.

    `words` must be lower-case ASCII, not abbreviations. They must not contain a k, because the Kelvin sign (U+212A)
    becomes a k in lower case.
    """
    for pattern, spaced in _substitutions(words):
        text = text.str.replace_all(pattern, spaced)
    return text.str.to_lowercase()


def found(text: pl.Expr, words: Sequence[str]) -> pl.Expr:
    """The list of all tokens that are among `words`, in lower case, with a space on both sides."""
    return tokens(text, words).str.extract_all(f" (?:{'|'.join(words)}) ")


def _substitutions(words: Sequence[str]) -> list[tuple[str, str]]:
    return [
        # Characters that are white space for Python but not for polars, and END itself.
        (r"[\x1c-\x1f]", "\u2028"),
        (END, "\x01"),
        # Sentences: the last stop of each run, then closing quotes and brackets after it.
        (r"\s+$", ""),
        (rf"([^{SPACE}]*[.?!])([{AFTER_STOP}]|\s)", f"$1{END}$2"),
        (rf"{END}(\s*[{CLOSING}]+)(\s|--|$)", f"$1{END}$2"),
        # Opening quotes. An apostrophe before a word is one, except before a clitic. None of our words is a clitic.
        (r"[«“‘„]|`+", " $0 "),
        (r"""([ (\[{<])("|'')""", "$1 `` "),
        (rf"(^|\W)'((?i-u:{'|'.join(words)}))", "$1' $2"),
        # Punctuation, the final stop first.
        (rf"""([^.{END}])\.([\])}}>"'»”’ ]*){FINAL}""", "$1 . $2 $3"),
        (r"([:,])(\D)", " $1 $2"),  # matches two characters, so the second of two commas is not separated
        (r"[:,]$", " $0 "),
        (r"\.\.+|[;@#$%&‒–—―]", " $0 "),
        (rf"""([^.{END}])\.([\])}}>"']*){FINAL}""", "$1 .$2 $3"),
        (r"[?!]", " $0 "),
        (r"([^'])' ", "$1 ' "),
        (r"[*\[\](){}<>]|--", " $0 "),
        # Closing quotes, then clitics, which need a space after them.
        (f"[»”’{END}]|''|\"", " $0 "),
        (r"\s+|^|$", "  "),
        (r"([^' ])('[sSmMdD]|') ", "$1  $2 "),
        (r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", "$1  $2 "),
    ]
