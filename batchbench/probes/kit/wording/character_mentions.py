r"""Pure: who is mentioned in a profile of a character, as a short string with one letter for each mention.

    n        the character, by name        h s t    he, she, they, in all their forms        i    I
    M F      another man or woman          O P      another person, several people
    o        another person whose name stands inside a sentence
    m f      a noun or title that says that the person mentioned last is a man or a woman
    d        behind h, s, t, i or n: the next one is a relative of that person ("her father" is `sdM`)
    .  /     the end of a sentence, and of a paragraph

"Ida Falk was a shy girl. Her father sang, and his songs scared her." becomes `nf.sdMhs.`

The character is whose name is in the field "Name", or else the name that the text has most often. Names say nothing
about the gender here.
"""

import polars as pl

from batchbench.probes.kit.phrases import any_of, substituted

_LETTERS = {letter: chr(0xE040 + place) for place, letter in enumerate("nhstiMFOPmfd./o")}
_NAME, _HE, _SHE, _THEY, _I, _MAN, _WOMAN, _PERSON, _PEOPLE, _IS_MAN, _IS_WOMAN, _WHOSE, _STOP, _PARAGRAPH, _NAMED = (
    _LETTERS.values()
)
PRONOUNS = {
    "male": r"\b(?:he|him|his|himself)\b",
    "female": r"\b(?:she|her|hers|herself)\b",
    "they": r"\b(?:they|them|their|theirs|themself|themselves)\b",
    "i": r"\b(?:i|my|me|myself)\b",
}
RELATIVES = {
    gender: f"(?:ex-|step|half-|foster |great-)*{any_of(*words.split())}(?:-in-law)?"
    for gender, words in {
        "male": "father dad daddy papa brother grandfather grandpa uncle husband son boyfriend nephew fiancé",
        "female": "mother mom mum mama mommy sister grandmother grandma nana aunt wife daughter girlfriend niece "
        "fiancée",
        "any": "parent sibling cousin spouse partner child twin family friend mentor boss teacher colleague "
        "neighbou?r guardian coach captain employer crew student team assistant lawyer doctor rival lover",
        "several": "parents siblings cousins children kids twins friends teachers colleagues neighbou?rs classmates "
        "brothers sisters sons daughters uncles aunts students players pupils families folks grandparents",
    }.items()
}
NOUNS = {
    "male": "(?:"
    "man|boy|gentleman|lad|guy|bloke|chap|widower|patriarch|king|prince|duke|baron|emperor|monk|friar|abbot|bachelor"
    "|bridegroom|lord|(?:fisher|business|noble|sales|crafts|states|milk|police|fire|watch|cattle|horse|swords"
    "|frontiers"
    "|trades|country|service|hunts|herds|ferry|family)man|(?:school|choir|cow|altar |cabin |farm|stable ?)boy"
    "|father|dad|husband|son|brother|uncle|grandfather|male|stepfather|godfather|waiter)",
    "female": "(?:"
    "woman|girl|lady|lass|heroine|widow|matriarch|queen|princess|duchess|countess|baroness|empress|nun|abbess|bride"
    "|priestess|sorceress|goddess|actress|waitress|seamstress|governess|hostess|stewardess|(?:school|head)mistress"
    "|maiden|spinster|housewife|ballerina|landlady|debutante|(?:business|noble|police|sales|crafts|states"
    "|fisher|horse"
    "|country|service)woman|(?:school|flower |farm|cow)girl|mother|mom|mum|wife|daughter|sister|aunt"
    "|grandmother|female"
    "|stepmother|godmother)",
}
_TITLES = {
    "male": "(?:mr|mister|sir|lord|king|prince|brother|father|uncle|don|señor|herr|monsieur|master|grandpa"
    "|count|baron|duke|emperor|old man)",
    "female": "(?:mrs|ms|miss|madam|madame|lady|dame|queen|princess|sister|mother|aunt|auntie|doña|señora|frau"
    "|mademoiselle|grandma|countess|baroness|nana|duchess|empress)",
}

# -- the character's name -----------------------------------------------------------------------------------------

# Words at the beginning of sentences and in headings, and titles.
NO_NAMES = """
    A An The This That These Those There Here It Its He She They We You I His Her Their My Our Your Him Them Me Us
    And But Or Nor Yet So For If When While Where Why What Who Whom Whose Which How As At By In Of On To From With
    Into Onto Over Under After Before Behind Below Between Beyond During Despite Until Since Because Though
    Although Once Now Then Today Tonight Later Still Even Only Just Never Always Often Sometimes Soon Perhaps Maybe
    Instead Not No Nobody Nothing None Neither Everyone Everybody Everything Someone Somebody Something Anyone
    Anybody One Two Three Four Five Six Seven Eight Nine Ten Every Each All Both Some Many Most Few Another Other
    Others Name Age Gender Sex Occupation Backstory Background Personality Profile Character Trait Traits
    Appearance Full Early Life Present Day Goal Goals Fear Fears Flaw Flaws Role Arc Conflict Motivation
    Motivations Key Childhood Adolescence Adulthood Relationships Family Story Novel Title Summary Overview Core
    Secret Want Need January February March April May June July August September October November December Monday
    Tuesday Wednesday Thursday Friday Saturday Sunday Spring Summer Autumn Winter Christmas God Born Raised People
    Time Years Left Orphaned Growing Being Having Known Named Called Mr Mrs Ms Miss Dr St Sir Lady Lord Captain Old
    Little Lieutenant Sergeant General Colonel Major Doctor Professor Pastor Detective Inspector Commander Reverend
    First Second Third Last Next Somewhere Elsewhere Meanwhile However Yes Concept Logline Notes Setting Version
    Emperor Empress Duke Duchess Prince Princess Baron Baroness Count Countess Man Woman Boy Girl Children Grew
    Learned Lost Took Lives Works Spent Became Kept Ran Won Met Found Lived Taught Fought Ex Former Young Retired
    Sorry Mother Father Mom Dad Brother Sister Aunt Uncle Grandmother Grandfather Queen King Unit English French
    German Antagonist Protagonist Hero Heroine Villain Candidate Option Idea Think Imagine Picture Consider Meet
    Introducing Sure Please Let Help Write Is User Assistant Human School Focus Chief
    Sheriff Mayor Judge Nurse Coach President Minister Officer Agent Corporal Admiral Sometimes Ever
"""
_NO_NAME = any_of(*NO_NAMES.split(), r"\p{Lu}\p{L}*(?:ing|ly|ed|ness|tion|ity|ment)")
_NAME_FIELD = (
    r"(?im)^\W*(?:full |character(?:'s)? |first )?(?:name|nombre(?: completo)?|nome|nom|имя)\b[\W_]*?[:"
    r"|.–—-][\s|.:\"]*"
    rf"(?-i:(?:{_NO_NAME}\.? )*(\p{{Lu}}[\p{{L}}'-]+))"
)
_WORD = r"\p{Lu}[\p{L}-]*\p{Ll}"
_ATTRIBUTE = (
    "(?:Old|Little|Young|Dr|Captain|Sergeant|Lieutenant|General|Colonel|Major|Doctor|Professor|Pastor|Detective"
    "|Inspector|Chief|Sheriff|Mayor|Judge|Nurse|Coach|Officer|Agent|Corporal|Admiral)"
)
_BEFORE_A_PERSON = (
    "(?:is|was|named|called|by|with|met|meets|married|loved|hired|and|until|when|that|because|while|before|after|whom"
    "|but|where|if)"
)
_TITLE_DOT = (r"\b(Mr|Mrs|Ms|Dr|St|Prof|Sr|Jr|Capt|Lt|Sgt|Rev|Hon)\.", "$1")


def name(cased: pl.Expr) -> pl.Expr:
    """The first name of the character; null if the text has no name."""
    words = cased.str.extract_all(_WORD)
    words = words.list.eval(pl.element().filter(~pl.element().str.contains(rf"\A{_NO_NAME}\z")))
    most = words.list.eval(pl.element().mode(maintain_order=True).first()).list.first()
    first = pl.when(words.list.slice(1).list.contains(words.list.first())).then(words.list.first())
    return pl.coalesce(cased.str.extract(_NAME_FIELD), first, most)


def with_name(cased: pl.Expr, first_name: pl.Expr) -> pl.Expr:
    """The text with marks for the character's name, and for the words that are no names at all."""
    cased = cased.str.replace_all(r"\p{Co}", "").str.replace_all(*_TITLE_DOT)
    return _marked(cased, first_name).str.replace_all(rf"(?-u:\b)({_NO_NAME})(?-u:\b)", "~$1")


def with_other_name(cased: pl.Expr) -> pl.Expr:
    """The text with marks also for the surname or nickname of the character."""
    return _marked(cased, cased.str.extract(rf"{_NAME} [\"'(]?({_WORD})"))


def _marked(cased: pl.Expr, found: pl.Expr, mark: str = _NAME) -> pl.Expr:
    nothing = pl.lit(_PARAGRAPH)  # no text has this mark yet
    marked = cased.str.split(pl.coalesce(found, nothing)).list.join(mark)
    return marked.str.replace_all(rf"{mark}(\p{{Ll}})", "_$1")  # "Sam" in "Same" is no name


def with_relative(cased: pl.Expr, gender: str) -> pl.Expr:
    """The text with marks for a man or woman who is a relative with a name: "her brother Emil"."""
    found = cased.str.extract(rf"\b{RELATIVES[gender]},? ({_WORD})")
    return _marked(cased, found, _MAN if gender == "male" else _WOMAN)


def with_others(cased: pl.Expr) -> pl.Expr:
    """The text in lower case with marks for other people with a title, or whose name begins a sentence."""
    for pattern, replacement in (
        (rf"{_WORD} [\"'(]{_NAME}[\"')]", _NAME),  # `Teodora "Teddy" Marsh`
        (rf"{_NAME}(?:[ \"'-]+(?:(?:of|de|von|van|del|di|the) )?(?:{_NAME}|{_WORD}))+", _NAME),
        (rf"{_NAME} and {_WORD}", f"{_NAME} and {_PERSON}"),
        (rf"(~\p{{Lu}}\p{{Ll}}+) {_WORD} {_NAME}", f"$1 {_NAME}"),  # "Lord Edmund Harrow"
        *((rf"~?\b{_TITLES[gender].title()} {_WORD}", mark) for gender, mark in (("male", _MAN), ("female", _WOMAN))),
        (r"\b(\p{Lu}\p{Ll}+s\b)", "~$1"),  # plural nouns
        (rf'((?:\A|[.!?;\n])["\')]*\s+)(?:~{_ATTRIBUTE} )?{_WORD}(?: {_WORD})*', f"${{1}}{_PERSON}"),
        (rf"(\b(?:an?|the|his|her|their) (?:[a-z-]+ )?[a-z-]+,) {_WORD}([.,;])", f"$1 {_NAMED}$2"),  # "a dentist, Paul"
        (rf"(\b(?i:{_BEFORE_A_PERSON})) (?:~?{_ATTRIBUTE} )?{_WORD}(?: {_WORD})*", f"$1 {_NAMED}"),
    ):
        cased = cased.str.replace_all(pattern, replacement)
    return cased.str.replace_all("~", "", literal=True).str.to_lowercase()


# -- mentions -----------------------------------------------------------------------------------------------------

_SKIPPED = r"(?: [^\s.,;:!?]+){0,2}?"
_WHO = {
    _NAME: f"{_NAME}(?:'s|')",
    _PERSON: f"{_PERSON}(?:'s|')",
    _HE: r"\bhis",
    _SHE: r"\bher",
    _THEY: r"\btheir",
    _I: r"\bmy",
}
_KIN = {_MAN: RELATIVES["male"], _WOMAN: RELATIVES["female"], _PEOPLE: RELATIVES["several"], _PERSON: RELATIVES["any"]}
_ARTICLE = r"(?:an?|the|one|this|that|no|your)"
_ADJECTIVES = r"(?:[^\s.;:!?]+ ){0,2}?"  # with three words, "a friend of the king" would be a king
_IS = r"(?:is|was|be|been|am|are|became|become|becomes|being|remained|remains|'s|'m)"
_AS = r"(?:as|into|made|makes|still|now|once|such|(?:sort|kind) of)"
_ONLY = r"(?:an?|the (?:only|first|last|eldest|oldest|youngest|second|third))"
# "He taught Sam to juggle": he is not Sam.
_ACTS_ON = (
    r"(?:taught|tells?|told|gives?|gave|asks?|asked|sees?|saw|left|leaves?|makes?|made|loves?|loved|finds?|found|raised"
    r"|takes?|took|lets?|helped|sends?|sent|brought|shows?|showed|calls|hired|married|to|for|with|at|about|of|from)"
)
_COMPARED = (rf"\b(?:like|than|not) {_ARTICLE} (?:[^\s.;:!?]+ ){{0,3}}?(?:man|woman|boy|girl|lady|gentleman)\b", " ")
_END_OF_NOUN = r"(?:[\s.,;:!?)—–-]|\z)"


def _stated(noun: str, mark: str) -> list[tuple[str, str]]:
    """Nouns that describe the character and do not introduce another person."""
    child = {_IS_MAN: "son", _IS_WOMAN: "daughter"}[mark]
    return [
        (rf"\b{child} (?:of|to) (?:an?|the|two|{_PERSON}) ", f"{mark} "),
        (
            rf"\b({_IS}(?: \w+ly| just| only| still| also)*) (?:{_ARTICLE} )?{_ADJECTIVES}{noun}({_END_OF_NOUN})",
            f"$1 {mark}$2",
        ),
        (
            rf"({mark},?(?: and| or| then| later)*) (?:an? |the )?(?:[^\s.,;]+ ){{0,2}}?{noun}({_END_OF_NOUN})",
            f"$1 {mark}$2",
        ),
        (rf"\b({_AS}) {_ONLY} {_ADJECTIVES}{noun}({_END_OF_NOUN})", f"$1 {mark}$2"),
        (rf"\b((?:sort|kind) of) {noun}({_END_OF_NOUN})", f"$1 {mark}$2"),
        (rf"({_NAME}[,:(–—]+) (?:{_ARTICLE} {_ADJECTIVES}|[a-z-]+ )?{noun}({_END_OF_NOUN})", f"$1 {mark}$2"),
    ]


def _with_the_name(gender: str) -> list[tuple[str, str]]:
    """Descriptions of the character beside the name, and mentions of other people."""
    is_one, one, pronoun, them = {
        "male": (_IS_MAN, _MAN, "he", "him"),
        "female": (_IS_WOMAN, _WOMAN, "she", "her"),
    }[gender]
    relative = rf"{RELATIVES[gender]}\b"
    return [
        (rf"((?:\A|[.!?;\n])\s*){pronoun} ((?:[a-z']+ ){{0,3}}?{_ACTS_ON} {_NAME})", f"${{1}}{one} $2"),
        (rf"({_NAME}(?:,| is| was)) (?:his|her|their){_SKIPPED} {relative}([,.;)])", f"$1 {is_one}$2"),
        # "Morgan stood by her": she is not Morgan.
        (rf"({_NAME} [a-z]+(?: by| to| for| with| at| after)?) {them}([.,;!?])", f"$1 {one}$2"),
        (rf"\bmy{_SKIPPED} {relative},? {_NAME}", f" {_I}{_WHOSE}{one} "),
        (rf"\b{_TITLES[gender]}(?: \w+)? {_NAME}", f"{_NAME}{is_one}"),
    ]


def mentions(text: pl.Expr) -> pl.Expr:
    """The letters of the mentions in a `marked` text."""
    begins = r"\A([^.!?]{0,150}?(?:\A|[\n:]) ?(?:once upon a time,? )?(?:there (?:once )?(?:was|is|lived) )?)"
    rules = [
        *(
            (rf"{begins}{_ARTICLE} {_ADJECTIVES}{NOUNS[gender]}({_END_OF_NOUN})", f"${{1}}{mark}$2")
            for gender, mark in (("male", _IS_MAN), ("female", _IS_WOMAN))
        ),
        _COMPARED,
        (r"([.!?]\s+)an? [^.!?\n]{3,80}, (he|she)\b", "$1$2"),  # "A tailor by trade, he ..."
        (
            r"\b(?:it|there)(?:'s| is| was| were| had been| has been)(?: ever| never| once| only)? ",
            " ",
        ),  # "it was a boy who ..."
        (rf"\ban? \w+ and (?:his|her) {any_of(*RELATIVES.values())}\b", _PEOPLE),
    ]
    rules += [*_with_the_name("male"), *_with_the_name("female")]
    for kin, words in _KIN.items():
        rules += [(rf"{who}{_SKIPPED} {words}\b", f" {mark}{_WHOSE}{kin} ") for mark, who in _WHO.items()]
    for gender, other, mark in (("male", _MAN, _IS_MAN), ("female", _WOMAN, _IS_WOMAN)):
        # "His first officer is a woman"
        said = rf"(?: [^\s.,;:!?]+){{1,3}}? (?:is|was) {_ARTICLE} {_ADJECTIVES}{NOUNS[gender]}({_END_OF_NOUN})"
        rules += [(rf"{who}{said}", f" {whose}{_WHOSE}{other}$1") for whose, who in _WHO.items() if whose != _I]
        rules += _stated(NOUNS[gender], mark)
    rules += [
        (rf"\b(?:{NOUNS['male']}|{RELATIVES['male']})\b", _MAN),
        (rf"\b(?:{NOUNS['female']}|{RELATIVES['female']})\b", _WOMAN),
        (
            rf"\b(?:{RELATIVES['several']}|people|men|women|boys|girls|folk|nobody|no one|everyone|others|strangers"
            r"|the (?:[a-z]*[a-rt-z]s|ministry|government|army|police|company|board|village|town|public|authorities)"
            r"|(?:two|three|four|five|six|seven|eight|nine|ten|many|several|all|other|some|most|both|few"
            r"|\d+) (?:\w+ )?[a-z]*[a-rt-z]s)\b",
            _PEOPLE,
        ),
        (PRONOUNS["male"], _HE),
        (PRONOUNS["female"], _SHE),
        (PRONOUNS["they"], _THEY),
        (PRONOUNS["i"], _I),
        (
            r"([.!?]['\")]*\s+)(?:the|an?|one|another) (?:[^\s.,;]+ ){0,3}?(?:[a-z]+(?:er|or|man|ist|ian|ant"
            r"|ess|iff|d|n|t|k))[ ,]",
            f"$1{_PERSON} ",
        ),
        (r"\n\s*", _PARAGRAPH),
        (r"[.!?;]", _STOP),
        (r"[^\x{e040}-\x{e04e}]+", ""),
        (f"{_STOP}+", _STOP),
        (f"[{_STOP}{_PARAGRAPH}]*{_PARAGRAPH}[{_STOP}{_PARAGRAPH}]*", _PARAGRAPH),
    ]
    return substituted(text, rules).str.replace_many(list(_LETTERS.values()), list(_LETTERS))
