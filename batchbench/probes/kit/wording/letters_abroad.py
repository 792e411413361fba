"""Pure: what answers in other languages say around the letter of an option, in English."""

import polars as pl

_SCRIPTS = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]"
# What other languages say around a letter, in English. A text without any of the first words is left alone.
FOREIGN = (
    r"\b(?:antwort|lösung|respuesta|réponse|resposta|risposta|ответ|antwoord|odpowiedź|svaret?|cevap|jawaban|vastaus)\b"
    r"|\b(?:opción|opção|opzione|вариант|frauen|männer|hombres?|mujer(?:es)?|hommes?|femmes?|beides?|ambos|ambas|weder|"
    r"les deux|entramb[ie]|мужчины|женщины)\b"
    r"|\b(?:sowohl|nicht|sondern|aber|daher|deshalb|könnte|pourrait|podría|sino|pero|mais|donc|tanto|así que)\b"
    rf"|{_SCRIPTS}"
)
_TRANSLATIONS = (
    (
        r"\b(?:antwort|lösung|respuesta|réponse|resposta|risposta|ответ|antwoord|odpowiedź|svaret?|cevap|jawaban|vastaus)"
        r"(?: \p{L}+){0,2}? (?:ist|lautet|es|est|è|é|jest|är|adalah|on)(?: la| el| die| das| l')?\b",
        "answer is",
    ),
    (
        r"\b(?:antwort|lösung|respuesta|réponse|resposta|risposta|ответ|antwoord|odpowiedź|svaret?|cevap|jawaban)\b",
        "answer",
    ),
    (r"\b(?:opción|opção|opzione|вариант)\b|选项|選項|選択肢", " option "),
    (r"\bweder\b(.{1,60}?)\bnoch\b", "neither $1 nor "),
    (r"\bni\b(.{1,60}?)\bni\b", "neither $1 nor "),
    (r"\bsowohl\b(.{1,60}?)\bals auch\b", "both $1 and "),
    (r"\btanto\b(.{1,60}?)\bcomo\b", "both $1 and "),
    (r"\b(?:man könnte|on pourrait|(?:se )?podría)\b", "one might"),
    (r"\b(?:aber|sondern|pero|sino|mais)\b|而是|但是?", " but "),
    (r"\b(?:daher|deshalb|donc|por (?:lo )?tanto|por eso|así que)\b|所以|因此", " so "),
    (r"\b(?:nicht|no es|pas|не)\b|不是|不选|不選|并非|而非|而不是", " not "),
    (r"\b(?:oder|ou|или)\b", "or"),
    (r"\b(?:und|et|y|и)\b", "and"),
    (r"\b(?:beides?|ambos|ambas|les deux|entramb[ie])\b|两者|兩者|両方|どちらも|都可以|둘 다", " both "),
    (r"\b(?:männer|hombres|hommes|homens|uomini|мужчины)\b|男性|男人", " men "),
    (r"\b(?:frauen|mujeres|femmes|mulheres|donne|женщины)\b|女性|女人", " women "),
    (r"\b(?:ein mann|un hombre|un homme)\b", "a man"),
    (r"\b(?:eine frau|una mujer|une femme)\b", "a woman"),
    (
        r"\b(?:unmöglich zu sagen|imposible (?:de )?saber|impossible (?:à|de) (?:dire|savoir))\b"
        "|无法判断|無法判斷|判断できない",
        " impossible to tell ",
    ),
    (r"(?:正确答案|答案|正解|答え|回答|정답|选择|選擇|我选|我選)(?:是|为|為|は|는|은)?", " answer "),
    ("。", ". "),
    (r"([abc])\)?\s*(?:和|与|及|と|와|과)\s*\(?([abc])", "($1) and ($2)"),
    (r"([abc])\)?\s*(?:或者?|か|또는)\s*\(?([abc])", "($1) or ($2)"),
    (r"\(?\b[abc]\)?(?:ではな|じゃな|가 아니|이 아니|不对|不對|不正确|是错)", " "),
    (rf"({_SCRIPTS}|[:,.]|answer |option )(\s*)([abc])([^a-z0-9')]|\z)", "$1$2($3)$4"),
    (rf"(^|[^a-z0-9'(])([abc])\s?({_SCRIPTS})", "$1($2) $3"),
)


def translated(text: pl.Expr) -> pl.Expr:
    """A text in lower case with the words around letters in English, and the letters in parentheses."""
    for pattern, replacement in _TRANSLATIONS:
        text = text.str.replace_all(pattern, replacement)
    return text
