r"""Pure: the part of a text that is the answer, without reasoning, and the text without decoration.

Models that reason may write their thoughts into the text: between tags, before a closing tag without an opening one
(the chat template wrote that), behind an opening tag that is never closed (the limit on tokens was reached), or in the
channels of the harmony format, with or without its special tokens.

Every expression first tests which texts need it, and changes only those: most answers have no reasoning.
"""

from collections.abc import Callable

import polars as pl

REASONING = ("closed", "unclosed")

_TAG = (
    r"(?:[a-z]+:)?(?:think|thinking|thoughts?|reasoning|reason|reflection|scratch_?pad|analysis|rationale|cot"
    r"|chain_of_thought|(?:inner|internal)_?(?:monologue|thoughts?)|deliberation)"
)
_OPEN = (
    rf"(?:<\s*{_TAG}(?:\s[^<>]*)?(?:>|\z)|\[think\]|◁think▷|<\|begin_of_thought\|>|<\|start_thinking\|>|<\|think\|>"
    r"|<\|channel>\s*thought\b|\A\s*(?:here is|here['’]s) my thought process:|\A\s*thinking\.\.\.\s*\n"
    r"|(?-i:\A\s*thought\n))"
)
_CLOSE = (
    rf"(?:<\s*/\s*{_TAG}\s*>|\[/think\]|◁/think▷|<\|end_of_thought\|>|<\|end_thinking\|>|<\|/think\|>|<channel\|>"
    r"|\.\.\.\s*done thinking\.?|(?:here is|here['’]s) my response:|\[begin final response\])"
)
_EMPTY = rf"(?i)<\s*{_TAG}\s*/\s*>|<\s*{_TAG}\s*>\s*<\s*/\s*{_TAG}\s*>"
_CHANNEL = r"<\|channel\|>"
_FINAL_CHANNEL = rf"{_CHANNEL}\s*final[^\n]*?<\|message\|>"
# The harmony format without its special tokens: `analysisThe user asks ...assistantfinalThe answer`.
_BARE_ANALYSIS = r"\A\s*(?:assistant\s*)?analysis(?:[^\s:.,;!?)'’/–—-]|\s+\p{Lu})"
_BARE_FINAL = "assistantfinal:?"
_ANSWER_TAG = r"<\s*{}(?:final[_ -]?answer|answer|final|output|response|solution|result)\s*>"
_ANSWER = (
    rf"(?:{_ANSWER_TAG.format('')}|<\|begin_of_solution\|>|<\|start_response\|>)",
    rf"(?:{_ANSWER_TAG.format('/ *')}|<\|end_of_solution\|>|<\|end_response\|>)",
)
_END_OF_TURN = (
    r"(?:<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|end|return|call|eot)\|>|<end_of_turn>|<turn\|>|</s>|<eos>"
    r"|\[end final response\])"
)
MARKERS = (
    *("<", "[think]", "[/think]", "◁", "assistantfinal", "done thinking", "my thought process:", "my response:"),
    *("final response]", "analysis", "thinking...", "thought\n"),
)
_QUOTES = {"‘": "'", "’": "'", "‚": "'", "‛": "'", "´": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"'}


def final_answer(text: pl.Expr) -> pl.Expr:
    """The text without reasoning; null if only reasoning is left. Of a text with `<answer>` tags, what they contain."""
    return changed_where(_has_marker(text), text, lambda marked: _without_reasoning(marked.str.replace_all(_EMPTY, "")))


def reasoning(text: pl.Expr) -> pl.Expr:
    """Whether the text contains reasoning, `closed` or `unclosed`; null if it contains none."""
    marked = pl.when(_has_marker(text)).then(text).str.replace_all(_EMPTY, "")
    channels = marked.str.contains(f"{_CHANNEL}|{_BARE_ANALYSIS}|{_BARE_FINAL}")
    final = marked.str.contains(rf"{_FINAL_CHANNEL}|assistant\s*final")
    closed = marked.str.contains(f"(?i){_CLOSE}")
    unclosed = marked.str.replace(rf"(?is)\A.*{_CLOSE}", "").str.contains(f"(?i){_OPEN}")
    return (
        pl.when(unclosed | (channels & ~final))
        .then(pl.lit("unclosed"))
        .when(closed | channels)
        .then(pl.lit("closed"))
        .cast(pl.Enum(REASONING))
    )


def normalized(text: pl.Expr) -> pl.Expr:
    """The text `undecorated` and in lower case."""
    return undecorated(text).str.to_lowercase()


def undecorated(text: pl.Expr) -> pl.Expr:
    r"""The text in one spelling (NFKC, straight quotes), without emphasis, LaTeX and invisible letters.

    Line breaks stay. Emphasis is `*`, backticks, headings, `~~` and `_` around words; LaTeX is `\boxed{}`, `\text{}`
    and `$`.
    """
    text = changed_where(text.str.len_bytes() != text.str.len_chars(), text, _one_spelling)
    return changed_where(text.str.contains(r"[*_`#~>|\\$\r\t\x00-\x08\x0b-\x1f]"), text, _without_decoration)


def folded(text: pl.Expr) -> pl.Expr:
    """The text with every run of white space, line breaks too, as one space, and none around it."""
    return text.str.replace_all(r"\s+", " ").str.strip_chars()


def changed_where(test: pl.Expr, text: pl.Expr, change: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """`change(text)` where the test holds, else the text. Other rows cost nothing: `change` sees null there.

    `text` should be a column, or a short expression: it becomes several parts of the result.
    """
    return pl.when(test).then(change(pl.when(test).then(text))).otherwise(text)


def _has_marker(text: pl.Expr) -> pl.Expr:
    return text.str.contains_any(list(MARKERS), ascii_case_insensitive=True)


def _without_reasoning(text: pl.Expr) -> pl.Expr:
    opening, closing = _ANSWER
    for pattern, replacement in (
        (rf"(?s)\A.*(?:{_FINAL_CHANNEL}|{_BARE_FINAL})", ""),
        (rf"(?s){_BARE_ANALYSIS}.*assistant\s*final:?", ""),
        (f"(?s){_BARE_ANALYSIS}.*", ""),
        (rf"(?is)(\S)\s*{_END_OF_TURN}.*", "$1"),
        (rf"(?s)\A.*{_CHANNEL}.*", ""),
        (rf"(?is)\A(.*?){_OPEN}.*{_CLOSE}\s*\z", "$1"),  # reasoning behind the answer
        (rf"(?is)\A.*{_CLOSE}", ""),
        (f"(?is){_OPEN}.*", ""),
        (rf"(?is)\A.*{opening}([^<]*[^<\s][^<]*)\z", "$1"),
        (rf"(?is)\A.*?{opening}(.*\S.*){closing}.*", "$1"),
    ):
        text = text.str.replace(pattern, replacement)
    text = text.str.replace_all(f"(?i){opening}|{closing}", " ")
    return text.str.extract(r"(?s)\A\s*(\S.*)\z")


def _one_spelling(text: pl.Expr) -> pl.Expr:
    text = text.str.replace_many(list(_QUOTES), list(_QUOTES.values())).str.normalize("NFKC")
    return text.str.replace_all(r"[\u{2028}\u{2029}\u{85}]", "\n").str.replace_all(
        r"[\p{Cf}\u{34f}\u{fe00}-\u{fe0f}\u{20e3}]", ""
    )


def _without_decoration(text: pl.Expr) -> pl.Expr:
    text = text.str.replace_all(r"\r\n?", "\n").str.replace_all(r"[\x00-\x09\x0b-\x1f]", " ")
    text = text.str.replace_all(r"<\|[^|<>\n]{1,40}\|>|```[a-zA-Z]*|[*`]|~~", "")
    text = text.str.replace_all(r"(?m)^[ ]*(?:#{1,6}[ ]+|>[ ]*)", "")
    text = text.str.replace_all(r"(^|[^\p{L}\p{N}_])_+", "$1").str.replace_all(r"_+([^\p{L}\p{N}_]|$)", "$1")
    command = r"\\(?:boxed|fbox|(?:text|math)(?:bf|it|rm|sf|tt)?)\s*"
    for _ in range(3):  # a command may contain others
        text = text.str.replace_all(command + r"\{([^{}]*)\}", "$1")
    text = text.str.replace_all(rf"{command}\{{|\\[()\[\]]", "")
    return text.str.replace_all(r"\$\$?([^$\n]{1,200}?)\$\$?", "$1")
