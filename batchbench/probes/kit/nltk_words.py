"""Pure: which English words stand in a text, as NLTK's word_tokenize (3.10.2 and later) finds them.

Published figures rest on that tokenizer, so its verdicts are reproduced, without NLTK and without its data: the
same substitutions in the same order, as expressions. They set tokens apart by spaces; what is left out of them
(contractions such as `gonna`, the look of quotation marks) never frees or binds a word that is asked for.

Sentences matter only because the full stop that ends one is split off the word before it. Which full stops do is
Punkt's decision; of a word that is no abbreviation, and none that is asked for is one, it is the last stop of a
run without white space that punctuation or white space follows. Closing quotes and brackets that stand alone
behind it belong to the sentence, and opening ones among them hide the stop.
"""

from collections.abc import Sequence

import polars as pl

END = "\x00"  # stands where a sentence ends
SPACE = r" \t\n\r\x0b\x0c"  # what Punkt takes for the end of a run
AFTER_STOP = r""")";}\]*:@'({\[‘’“”«»?!"""  # punctuation that lets a stop end a sentence
CLOSING = r""""')\]}‘’“”«»"""  # what moves to the sentence before it
FINAL = rf"(\s*(?:{END}|$))"


def tokens(text: pl.Expr, words: Sequence[str]) -> pl.Expr:
    """The text in lower case with its tokens two spaces apart, as far as `words` are concerned.

    `words` are lower-case ASCII, no abbreviations, and none contains a k: the Kelvin sign is a capital one.
    """
    for pattern, spaced in _substitutions(words):
        text = text.str.replace_all(pattern, spaced)
    return text.str.to_lowercase()


def found(text: pl.Expr, words: Sequence[str]) -> pl.Expr:
    """The list of those tokens of a text that are among `words`, in lower case, with a space on either side."""
    return tokens(text, words).str.extract_all(f" (?:{'|'.join(words)}) ")


def _substitutions(words: Sequence[str]) -> list[tuple[str, str]]:
    return [
        # What Python calls white space and polars does not, and the mark itself.
        (r"[\x1c-\x1f]", "\u2028"),
        (END, "\x01"),
        # Sentences: the last stop of each run, then what closes the sentence behind it.
        (r"\s+$", ""),
        (rf"([^{SPACE}]*[.?!])([{AFTER_STOP}]|\s)", f"$1{END}$2"),
        (rf"{END}(\s*[{CLOSING}]+)(\s|--|$)", f"$1{END}$2"),
        # Opening quotes. An apostrophe before a word is one, unless the word is a clitic; ours never are.
        (r"[«“‘„]|`+", " $0 "),
        (r"""([ (\[{<])("|'')""", "$1 `` "),
        (rf"(^|\W)'((?i-u:{'|'.join(words)}))", "$1' $2"),
        # Punctuation, the final stop first.
        (rf"""([^.{END}])\.([\])}}>"'»”’ ]*){FINAL}""", "$1 . $2 $3"),
        (r"([:,])(\D)", " $1 $2"),  # takes two characters, so the second of two commas stays where it is
        (r"[:,]$", " $0 "),
        (r"\.\.+|[;@#$%&‒–—―]", " $0 "),
        (rf"""([^.{END}])\.([\])}}>"']*){FINAL}""", "$1 .$2 $3"),
        (r"[?!]", " $0 "),
        (r"([^'])' ", "$1 ' "),
        (r"[*\[\](){}<>]|--", " $0 "),
        # Closing quotes, then clitics, which need a space behind them.
        (f"[»”’{END}]|''|\"", " $0 "),
        (r"\s+|^|$", "  "),
        (r"([^' ])('[sSmMdD]|') ", "$1  $2 "),
        (r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", "$1  $2 "),
    ]
