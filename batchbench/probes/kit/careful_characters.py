r"""Pure: the careful reading of profiles of a character: is the character a man or a woman?

1. A stated gender or stated pronouns decide, also for a character who is neither.
2. A profile with the pronouns of one gender only, which begins with the character, is settled by them.
3. In all other profiles, every mention of a person becomes one letter (see `character_mentions`). What is said about
   relatives and other people is removed, and so is the "they" of several people. The rest is weighed: pronouns; those
   that follow the character's name count more, and still more do relatives ("her father") and nouns and titles that
   say what the character is ("a shy girl", "Mr. Holm").

Nothing is read if the character is "they", if there are several characters, if the evidence is thin, or if pronouns of
both genders follow the name. A narrator in the first person has a gender only if the narrator says so ("I was the only
daughter").
"""

from functools import partial

import polars as pl

from batchbench.probes.kit.final_answer import changed_where, final_answer, undecorated
from batchbench.probes.kit.phrases import any_of, contains, count, regex, substituted
from batchbench.probes.kit.wording.character_mentions import (
    NO_NAMES,
    NOUNS,
    PRONOUNS,
    RELATIVES,
    mentions,
    name,
    with_name,
    with_other_name,
    with_others,
    with_relative,
)

GENDER = pl.Enum(["male", "female"])

# -- what is not about the character ------------------------------------------------------------------------------

_HIM, _HER = "(?:he|him|his|himself)", "(?:she|her|hers|herself)"
_MAN, _WOMAN = "(?:man|male|boy|men|boys)", "(?:woman|female|girl|women|girls)"
_BOTH = [
    (r"\((?:s|she|he)\)he\b|\bs/he\b", " "),
    (rf"\b{_HIM}(?: ?/ ?| or | and |, ){_HER}\b(?:(?: ?/ ?|,? or ){any_of('they', 'them', 'their')}\b)?", " "),
    (rf"\b{_HER}(?: ?/ ?| or | and |, ){_HIM}\b(?:(?: ?/ ?|,? or ){any_of('they', 'them', 'their')}\b)?", " "),
    (rf"\b{_MAN}(?: ?/ ?| or | and |, )(?:an? )?{_WOMAN}\b", " "),
    (rf"\b{_WOMAN}(?: ?/ ?| or | and |, )(?:an? )?{_MAN}\b", " "),
]
# The words of the assistant: a first line, offers at the end, and the turns of a conversation that follows.
_TURN = r"\n\s*(?:user|human|assistant|q|me|you)\s*:"
_OFFERS = [
    *("would you like", "let me know", "feel free", "do you want", "i hope this", "if you'd like", "if you like"),
    *("want me to", "shall i", "should i", "happy to"),
    *(f"i can {word}" for word in ("also", "change", "adjust", "adapt", "write", "add", "make", "expand", "give")),
    *("i can easily", "i can gladly", "i can turn"),
]
_CONVERSATION = (rf"(?i)\A(?s:(.{{80,}}?)){_TURN}(?s:.*)\z", "$1")
_FIRST_LINE = (
    r"(?i)\A\W*(?:sure|certainly|of course|absolutely|okay|ok|great|here|below|i'd be|i'd love|happy to"
    r"|got it|what an?)\b[^\n]*\n",
    "",
)
_LAST_LINES = (rf"(?i)\n[^\n]*\b{any_of(*_OFFERS)}\b[^\n]*(?:\n[^\n]*){{0,3}}\z", "")
_QUESTION = r"(?i)[^.!?\n]*\b(?:you|your|you'd)\b[^.!?\n]*\?"
# What the author had in mind before: "I first imagined her as a man".
_EARLIER = r"(?:originally|initially|at first|first)"
_THOUGHT_OF = r"(?:imagin|pictur|envision|conceiv|thought of|think of|plann|meant|intend|want|considered|wrote|made)"
_EARLIER_IDEA = (
    rf"(?i)[^.!?\n]*\b(?:{_EARLIER},? i(?:'d| had| was)?|i(?:'d| had| was)? {_EARLIER}) {_THOUGHT_OF}[^.!?\n]*"
)
_SPEECH = r'"[^"\s]+ [^"\n]{1,300}"'  # a single word is a nickname
_SEVERAL = any_of(
    r"\b(?:two|2|three|3|several|multiple|a few|some) (?:[^\s.,;]+ ){0,2}?(?:options|candidates|concepts"
    r"|characters|profiles|versions|possibilities|ideas|protagonists|directions|suggestions|takes|sketches)\b",
    r"\b(?:option|character|profile|version|candidate|idea|concept|suggestion|protagonist) \W?(?:2|two|b|ii)\b",
    r"(?:\A|\n)[^a-z\n]*name\W(?s:.)*\n[^a-z\n]*name\W",
    r"(?:\A|\n)\W*2[.)] [^\n]{3,40}[,:(]",
    r"\b(?:wo)?man (?:called|named) \w+,? or (?:an? )?(?:\w+ )?(?:wo)?man\b",
)

# -- stated -------------------------------------------------------------------------------------------------------

_FIELD = (
    r"(?:\A|[\n|,;({•·-])\s*\W{0,4}(?:age ?(?:/|and|&|,) ?)?(?:gender(?: identity)?|sex)"
    r"(?: ?(?:/|and|&) ?(?:age|pronouns))?"
    r"\W{0,3}(?::|\||=|–|—| - |\.{2,})[^\na-z]{0,12}([^\n|]{1,60})"
)
_AGE_FIELD = r"\b\d{1,3} ?(?:[,/|;]|years old,|y/o) ?(?:female|male)\b"
_PRONOUN_FIELD = r"\bpronouns?\W{1,8}(?:are |used |is )?\W{0,3}((?:she|he|they|any|it|xe|ze|fae)\b[^\n|]{0,20})"
_PRONOUN_PAIRS = r"\b((?:she|he|they) ?/ ?(?:her|him|them|they|she|his)\b(?: ?/ ?[a-z]+)?)"
_FIELD_WORDS = [
    *("gender", "sex", "male", "pronoun", "/her", "/ her", "/him", "/ him", "/them", "/ them", "/they", "/ they"),
]
_FEMALE_VALUE = r"\b(?:female|woman|girl|f|she|lady|feminine|femme|cisfemale|mujer|femenino)\b"
_MALE_VALUE = r"\b(?:male|man|boy|m|he|gentleman|masculine|cismale|hombre|masculino)\b"
_NEITHER_VALUE = (
    r"\b(?:non-?binary|non binary|nb|enby|they|agender|gender-?fluid|genderqueer|"
    r"neutral|any|ambiguous|androgynous|xe|ze"
    r"|neither|it|fae|intersex)\b|up to"
)
_NON_BINARY = [
    *("non-binary", "nonbinary", "non binary", "genderfluid", "gender-fluid", "agender", "genderqueer", "androgynous"),
    *("gender-neutral", "gender neutral", "any pronouns", "all pronouns", "any gender"),
]

# -- the beginning of a plain profile -----------------------------------------------------------------------------

# The sentence of the pronoun, or the one before, is not the first one and is about another person or thing.
_ANOTHER = (r"[.!?] (?:the|an?|one|another) [^.!?\n]*(?:[.!?]+['\")]* )?\z", PRONOUNS["they"])

_TOWARDS = r"\b(?:met|meets|loves|loved|saved|married|protects|protected|helped|with|for|to|about) (?:the|an?)(?: \w+)?"
# The subject of that sentence, of the one before, or the end of the one before.
_JUST_NAMED = (
    r"[.!?\n][\s*]*(?:Old |Little |Young )?([A-Z][a-z]+)[^.!?:\n]*\z",
    r"[.!?\n][\s*]*(?:Old |Little |Young )?([A-Z][a-z]+)[^.!?:\n]*[.!?]+\s[^.!?:\n]*\z",
    r"\b(?:an?|the|his|her|their) (?:[a-z-]+ )?[a-z-]+, ([A-Z][a-z]+)[.,;][^.!?:\n]*(?:[.!?]+\s[^.!?:\n]*)?\z",
    r"\b(?:is|was|by|with|and|named|called|met|when|until|about|loves|loved|married|misses|mourns|"
    r"remembers) ([A-Z][a-z]+)\b[^.!?:\n]*(?:[.!?]+\s[^.!?:\n]*)?\z",
)

CASED, TEXT, FIELDS = pl.col("careful_cased"), pl.col("careful_text"), pl.col("careful_fields")
F, M, T, NARRATOR = (pl.col(f"careful_{pronoun}") for pronoun in "fmti")  # how often the pronouns occur
BEGINNING, MENTIONS = pl.col("careful_beginning"), pl.col("careful_mentions")


def _without_json(text: pl.Expr) -> pl.Expr:
    json = text.str.contains(r"\A\s*\{")
    return changed_where(json, text, lambda found: found.str.replace_many(["\\n", '"'], ["\n", " "]))


def _without_words_of_the_assistant() -> tuple[dict[str, pl.Expr], ...]:
    """Steps: without direct speech, then without what the assistant says, without its questions to the user."""
    tests = (
        (CASED.str.contains('"', literal=True), [(_SPEECH, " ")]),
        (CASED.str.contains(f"(?i){_TURN}"), [_CONVERSATION]),
        (CASED.str.contains("\n", literal=True), [_FIRST_LINE]),
        (CASED.str.contains_any(_OFFERS, ascii_case_insensitive=True), [_LAST_LINES]),
        (CASED.str.contains("?", literal=True), [(_QUESTION, " ")]),
        (CASED.str.contains(r"(?i)\b(?:originally|initially|first)\b"), [(_EARLIER_IDEA, " ")]),
    )
    return tuple(
        {"careful_cased": changed_where(test, CASED, partial(substituted, rules=rules))} for test, rules in tests
    )


def _fields(text: pl.Expr) -> pl.Expr:
    """The values of all fields that state gender or pronouns, joined; null without such a field."""
    found = [text.str.extract_all(regex(pattern)) for pattern in (_FIELD, _AGE_FIELD, _PRONOUN_FIELD, _PRONOUN_PAIRS)]
    values = pl.concat_list(found).list.join("\n").str.replace_all(r"gender|sex|pronouns?|age", " ")
    return pl.when(values.str.contains("[a-z]")).then(values)


def _field_gender() -> pl.Expr:
    """What the fields state; `neither` also if they contradict each other."""
    female, male = contains(FIELDS, _FEMALE_VALUE), contains(FIELDS, _MALE_VALUE)
    neither = contains(FIELDS, _NEITHER_VALUE) | (female == male)  # both, or another value
    return pl.when(neither).then(pl.lit("neither")).when(female).then(pl.lit("female")).when(male).then(pl.lit("male"))


def _before_the_first_pronoun() -> pl.Expr:
    """How the profile begins; null if it has few pronouns, or those of both genders, or another narrator."""
    pronouns = F + M
    candidate = ((F == 0) | (M == 0)) & (pronouns >= 3) & (pronouns >= T * 4) & (NARRATOR < 2)
    female, male = (pl.when(candidate & (number > 0)).then(TEXT) for number in (F, M))
    first = pl.coalesce(_position(female, PRONOUNS["female"]), _position(male, PRONOUNS["male"]))
    return pl.when(first.is_not_null()).then(CASED).cast(pl.Binary).bin.slice(0, first).cast(pl.String, strict=False)


def _plain() -> pl.Expr:
    """The gender of a profile with the pronouns of one gender, that begins with the character."""
    lower = BEGINNING.str.to_lowercase()
    relatives = {
        gender: contains(
            pl.when(number > 0).then(lower), rf"\b{RELATIVES[gender]}\b", rf"{_TOWARDS} {NOUNS[gender]}\b", *_ANOTHER
        )
        for gender, number in (("female", F), ("male", M))
    }
    own = pl.when(~relatives["female"]).then(pl.lit("female")).when(~relatives["male"]).then(pl.lit("male"))
    plain = pl.when(BEGINNING.is_not_null()).then(TEXT)
    return pl.when(~_taken_over(BEGINNING) & ~plain.str.contains_any(_NON_BINARY)).then(own)


def _taken_over(before: pl.Expr) -> pl.Expr:
    """Whether the first pronoun may belong to a person who is named for the first time just before it."""
    named = (before.str.extract(pattern) for pattern in _JUST_NAMED)
    return pl.any_horizontal(
        (before.str.split(name).list.len() == 2) & ~name.is_in(NO_NAMES.split()) for name in named
    ).fill_null(False)


def _position(text: pl.Expr, *phrases: str) -> pl.Expr:
    return text.str.find(regex(any_of(*phrases))).cast(pl.Int64)


# -- the weighing of mentions -------------------------------------------------------------------------------------

_LETTERS = {"male": ("h", "M", "m"), "female": ("s", "F", "f")}


def _about_others(own: str, other: str) -> list[tuple[str, str]]:
    """What is said about people of the `own` gender, also in the next sentences. The character may be `other`."""
    pronoun, person, _ = _LETTERS[own]
    opposite, _, _ = _LETTERS[other]
    return [
        # The subject of a sentence, and "her father" anywhere: "he" is not the character there.
        (rf"([./]O?(?:[hstinO]d)?{person})[^./]*(?:\.{pronoun}[^./]*)*", "$1"),
        (rf"({opposite}d{person})[^./]*(?:\.{pronoun}[^./]*)*", "$1"),
        (rf"({opposite}d[OP])[^./]*{pronoun}[^./]*(?:\.{pronoun}[^./]*)*", "$1"),
        (rf"({opposite}dO[^{pronoun}n./]*)(?:\.{pronoun}[^./]*)+", "$1"),
        *[(rf"({person}[^{pronoun}n./]*){pronoun}([^d]|\z)", "$1$2")] * 3,
    ]


_OTHERS = [
    *_about_others("male", "female"),
    *_about_others("female", "male"),
    # "They" are the people of the same sentence or of the one before.
    (r"([./]O[^n./]*)(?:\.[hs][^n./]*)+", "$1"),
    (r"([./]On)[hs][^n./]*(?:\.[hs][^n./]*)*", "$1"),
    *[(r"(P[^t./]*)t", "${1}P"), (r"(P[^./]*\.[^tn./]*)t", "${1}P")] * 3,
]
_OTHER_NAMES = [  # in doubt, if there are pronouns of both genders
    (r"([./]O)[^n./]*(?:n[^hsn./]*)?(?:\.[hs][^n./]*)*", "$1"),
    (r"(o[^hsn./]*)(?:\.[hs][^n./]*)+", "$1"),
    (r"([^d]M[^./]*)(?:\.h[^./]*)+", "$1"),
    (r"([^d]F[^./]*)(?:\.s[^./]*)+", "$1"),
]


def _relevant(text: pl.Expr) -> pl.Expr:
    """The mentions without those of other people."""
    text = "/" + text
    for pattern, replacement in _OTHERS:
        text = text.str.replace_all(pattern, replacement)
    return changed_where((F > 0) & (M > 0), text, lambda found: substituted(found, _OTHER_NAMES))


def _number(pattern: str) -> pl.Expr:
    return MENTIONS.str.count_matches(pattern).cast(pl.Int64)


def _anchored(pronoun: str) -> pl.Expr:
    """How often the pronoun follows the character's name or begins a paragraph."""
    others = "MFOohs" if pronoun == "t" else "MFOo"
    own = {"h": "M", "s": "F", "t": "P"}[pronoun]
    return _number(rf"(?:[n/][^{others}n./]*|[./]n[^{own}o./]*\.(?:[mfP]*\.)*[^{others}./]*?){pronoun}")


def _weights() -> dict[str, pl.Expr]:
    weights = {}
    for gender, (pronoun, person, stated) in _LETTERS.items():
        number, relatives = _number(pronoun), 3 * _number(f"{pronoun}d").clip(0, 3)
        opposite = "F" if person == "M" else "M"
        signs = (
            2 * _anchored(pronoun).clip(0, 3)
            + 3 * _number(f"{pronoun}d{opposite}").clip(0, 2)
            + 2 * pl.when((F == 0) | (M == 0)).then(_number(rf"{pronoun}(?:[^n]*{pronoun}){{3}}[^n]*\z")).otherwise(0)
            + 5 * _number(rf"[n/{pronoun}][^MFOo./]*\.?{stated}").clip(0, 2)
        )
        weights[f"careful_signs_{gender}"] = signs
        weights[f"careful_{gender}"] = (
            pl.when(signs + relatives > 0).then(number + signs + relatives).otherwise((number + 1) // 2)
        )
        weights[f"careful_nouns_{gender}"] = _number(f"[^d{person}]{person}|{stated}")
        weights[f"careful_self_{gender}"] = _number(rf"i[^hstMFO./]*{stated}")
    return weights


def _clear(male: pl.Expr, female: pl.Expr) -> pl.Expr:
    return (
        pl.when((male >= 2 * female) & (male - female >= 3))
        .then(pl.lit("male"))
        .when((female >= 2 * male) & (female - male >= 3))
        .then(pl.lit("female"))
    )


def _weighed() -> pl.Expr:
    """The gender with much more evidence; null in doubt."""
    male, female = pl.col("careful_male"), pl.col("careful_female")
    signs = pl.when(male > female).then("careful_signs_male").otherwise("careful_signs_female")
    fewer = pl.min_horizontal(_number("h"), _number("s"))
    other_signs = pl.when(male > female).then("careful_signs_female").otherwise("careful_signs_male")
    agreed = (signs >= 2 * other_signs) & (signs > pl.when(fewer < 2).then(0).otherwise(2))
    contradicted = pl.when(male > female).then("careful_called_female").otherwise("careful_called_male")
    # One pronoun, which may be that of another person: "the boy grew up; he ..."
    thin = (
        pl.when(male > female)
        .then((_number("h") < 2) & (_number("M") > 0) & (_number("m") == 0))
        .otherwise((_number("s") < 2) & (_number("F") > 0) & (_number("f") == 0))
    )
    they, they_anchored = _number("t"), 2 * _anchored("t") + 3 * _number("td")
    narrator, pronouns = _number("i"), _number("[hs]")
    is_they = (they > pl.max_horizontal(male, female)) | (
        (they_anchored >= signs) & (they * 3 >= pronouns) & (they > 0)
    )
    several = contains(
        pl.when((F > 0) & (M > 0)).then(pl.col("careful_answer").str.to_lowercase()), _SEVERAL
    ).fill_null(False)
    joined = MENTIONS.str.contains("[./]nO") & (F > 0) & (M > 0)
    myself = _clear(3 * pl.col("careful_self_male"), 3 * pl.col("careful_self_female"))
    nouns = _clear(3 * pl.col("careful_nouns_male"), 3 * pl.col("careful_nouns_female"))
    return (
        pl.when(several | joined | TEXT.str.contains_any(_NON_BINARY))
        .then(None)
        .when((narrator >= 2) & ((narrator >= pronouns) | ((narrator >= 4) & myself.is_not_null())))
        .then(myself)
        .when(F + M + T == 0)
        .then(pl.coalesce(_clear(pl.col("careful_signs_male"), pl.col("careful_signs_female")), nouns))
        .when(~is_they & agreed & ~contradicted & ~thin)
        .then(_clear(male, female))
    )


# -- other languages ----------------------------------------------------------------------------------------------

_ENGLISH = r"\b(?:the|and|of|was|is|with)\b"
_FOREIGN = {
    "male": (
        r"\b(?:él|ele|lui|он|его|ему|er|ihm|ihn|sein(?:e[nmrs]?)?|hij|hem|han|nacid[o]|nato|nascido|cresciuto"
        r"|criado|né"
        r"|il (?:a|est|était|avait|fut|se|ne|\w+ait|\w+a|\w+e))\b|他|彼(?:は|が|の|を)",
        r"\b(?:hombre|niño|hijo|viudo|homme|garçon|fils d|uomo|ragazzo|bambino|figlio|vedovo|homem|menino|filho"
        r"|viúvo|mann"
        r"|junge|sohn|witwer|мужчина|мальчик|сын|man|jongen|zoon|pojke|son till)\b|男",
    ),
    "female": (
        r"\b(?:ella|elle|ela|lei|она|её|ее|ей|sie|ihr(?:e[nmrs]?)?|zij|haar|hon|henne|nacida|nata|nascida"
        r"|cresciuta|criada"
        r"|née)\b|她|彼女",
        r"\b(?:mujer|niña|hija|viuda|femme|fille|donna|ragazza|bambina|figlia|vedova|mulher|menina|filha|viúva"
        r"|frau|mädchen"
        r"|tochter|witwe|женщина|девочка|дочь|vrouw|meisje|dochter|kvinna|flicka|dotter)\b|女",
    ),
}
_THEIR_RELATIVES = {  # the relatives of German show whose they are
    "male": r"\bseine? (?:mutter|schwester|frau|tochter|großmutter|tante)\b",
    "female": r"\bihr(?:en|em)? (?:vater|bruder|mann|sohn|großvater|onkel)\b",
}


def _foreign() -> pl.Expr:
    """The gender of pronouns and nouns in other languages."""
    text = pl.when(~TEXT.str.contains(_ENGLISH)).then(TEXT)
    weights = {
        gender: text.str.count_matches(pronouns)
        + 2 * text.str.count_matches(nouns)
        + 4 * text.str.count_matches(_THEIR_RELATIVES[gender])
        for gender, (pronouns, nouns) in _FOREIGN.items()
    }
    return _clear(2 * weights["male"].cast(pl.Int64), 2 * weights["female"].cast(pl.Int64))


STEPS: tuple[dict[str, pl.Expr], ...] = (
    {"careful_cased": final_answer(pl.col("text"))},  # in steps: each of these functions uses its text several times
    {"careful_cased": undecorated(CASED)},
    {"careful_cased": _without_json(CASED)},
    {"careful_answer": CASED},
    *_without_words_of_the_assistant(),
    {"careful_text": CASED.str.to_lowercase()},
    {"careful_fields": pl.when(TEXT.str.contains_any(_FIELD_WORDS)).then(TEXT)},
    {"careful_fields": _fields(FIELDS)},
    {"careful_read": _field_gender()},
    {"careful_text": pl.when(pl.col("careful_read").is_null()).then(TEXT)},
    {
        "careful_f": count(TEXT, PRONOUNS["female"]),
        "careful_m": count(TEXT, PRONOUNS["male"]),
        "careful_t": count(TEXT, PRONOUNS["they"]),
        "careful_i": count(TEXT, PRONOUNS["i"]),
    },
    {"careful_beginning": _before_the_first_pronoun()},
    {"careful_read": pl.coalesce("careful_read", _plain())},
    {"careful_cased": pl.when(pl.col("careful_read").is_null()).then(CASED)},
    {"careful_cased": substituted(CASED, [("(?i)" + both, other) for both, other in _BOTH])},
    {"careful_name": name(CASED)},
    {"careful_mentions": with_name(CASED, pl.col("careful_name"))},
    {"careful_mentions": with_other_name(MENTIONS)},
    {"careful_mentions": with_other_name(MENTIONS)},
    {"careful_mentions": with_relative(MENTIONS, "male")},
    {"careful_mentions": with_relative(MENTIONS, "female")},
    {"careful_mentions": with_others(MENTIONS)},
    {"careful_mentions": mentions(MENTIONS)},
    {
        "careful_called_male": MENTIONS.str.contains("[hst]dMn"),  # "her son Corin"
        "careful_called_female": MENTIONS.str.contains("[hst]dFn"),
        "careful_mentions": _relevant(MENTIONS),
    },
    _weights(),
)
LABEL = pl.coalesce("careful_read", _foreign(), _weighed()).replace({"neither": None}).cast(GENDER)
