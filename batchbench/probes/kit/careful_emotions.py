r"""Pure: the careful reading of answers that name an emotion of a list.

An answer that is nothing but one emotion is settled at once. In all other texts every emotion becomes one character,
and those that are not the answer are removed: denied ones, those of quotations, questions, comparisons and lists. Then
the first of these decides:

1. a line that is just one emotion;
2. the emotion that is called the answer, the choice or the main one;
3. the only emotion, or else the only one that is felt, or else the only one that the answer begins with.

Adjectives and misspellings count as their noun. Synonyms do not, because they are not in the list.
"""

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from batchbench.probes.kit.final_answer import final_answer, normalized
from batchbench.probes.kit.phrases import any_of, contains, regex, substituted

ADJECTIVES = {
    "anger": ("angry", "angered"),
    "disgust": ("disgusted",),
    "fear": ("afraid", "fearful"),
    "guilt": ("guilty",),
    "joy": ("joyful", "joyous"),
    "sadness": ("sad", "saddened"),
    "shame": ("ashamed", "shamed"),
    "anxiety": ("anxious", "anxiousness"),
    "disappointment": ("disappointed",),
    "embarrassment": ("embarrassed",),
    "frustration": ("frustrated",),
    "regret": ("regretful",),
}
MISSPELLINGS = {
    "anger": ("angery",),
    "guilt": ("guity", "guillt"),
    "sadness": ("saddness", "sadnes"),
    "anxiety": ("anxeity", "anxiaty", "anxity"),
    "disappointment": ("diss?app?oint(?:e?ment|ed)",),
    "embarrassment": ("embarr?ass?(?:e?ment|ed)", "embarressment"),
    "frustration": ("fr?ust?r?at(?:ion|ed)", "frustraition"),
    "disgust": ("discust", "disguist"),
    "regret": ("regreat",),
}
_FIRST_MARK = 0xE010
_SEVERAL, _OTHER = "\ue030", "\ue031"  # two emotions joined; an emotion that is not in the list
_E = r"[\x{e010}-\x{e02f}]"
_X = r"[\x{e010}-\x{e031}]"

_ADJECTIVE = any_of(*(form for forms in ADJECTIVES.values() for form in forms))
_FIGURES_OF_SPEECH = [
    (r"\p{Co}", ""),
    ("_", " "),
    (r'\bimagine you are [^?]*\?\s*(?:"[^"]*(?:"|\z))?', " "),  # the question, repeated
    (r'"[^"\n]{25,}"', " "),  # the event, repeated
    (
        r"\bafraid (?:that )?(?:i|we|as|this|there|it|not)\b"
        r"|\b(?:i|we) (?:do |must |deeply )?(?:regret|fear) (?:to|that|i|we|it|the|this|my)\b"
        r"|\b(?:is|'s|what|such|be|seems) a (?:real |great |crying )?shame\b"
        r"|\bjoy is my\b|\b(?:named|called) joy\b|\bfor fear of\b|\bsad to say\b|\bshame on\b|\b\w+-free\b"
        r"|\bno regrets\b",
        " ",
    ),
    (r"\b(?:go|going|went|gone|stick|settle) (?:with|for)\b", " choose "),
    (r"\b(?:stays?|remains?|lingers?|sticks?|sits?) with (?:me|us|you)\b", " remains "),
    (
        r"\b(?:left|leaves?|leaving|filled|fills?|overwhelmed|overcome|struck|consumed)(?: me| us| you| one)?"
        r" (?:with|by)\b",
        " feel ",
    ),
    (r"\((main|primary|dominant|strongest|my (?:answer|choice|pick)|final)\b[^()\n]*\)", " $1 "),
    (
        r"\b(?:an?|the|this|that|his|her|their|my|your) (?:very |really |deeply |rather |"
        rf"so |truly )?{_ADJECTIVE} ",
        " ",
    ),
    (r"\bnot (?:only|just|merely|simply|solely)\b", " both "),
    (
        r"\b(?:can|could)(?:not|n't| not) help(?: but)?\b|\b(?:no|without(?: a| any)?) doubt\b|\bnothing but\b"
        r"|\bnone other than\b",
        " ",
    ),
]
_OTHER_EMOTIONS = any_of(
    *(
        r"relie(?:f|ved)",
        r"happ(?:y|iness)",
        "grie(?:f|ving)",
        r"surprised?",
        "pride",
        "proud",
        "confus(?:ion|ed)",
        "hurt",
    ),
    *("betray(?:al|ed)", "lonel(?:y|iness)", "grat(?:itude|eful)", "love", "excite(?:ment|d)", "hope(?:ful)?"),
    *("contempt", "jealous(?:y)?", "envy", "annoy(?:ance|ed)", "irritat(?:ion|ed)", "shock(?:ed)?", "worr(?:y|ied)"),
    *("nervous(?:ness)?", "disbelief", "remorse", "humiliat(?:ion|ed)", "sorrow", "upset", "heartbr(?:eak|oken)"),
    *("panic", "terror", "terrified", "scared", "frightened", "horror", "rage", "fury", "furious", "outrage", "stress"),
    *("indifferen(?:ce|t)", "resentment", "despair", "distress", "helpless(?:ness)?", "concern", "content(?:ment)?"),
)
_JOINED = (
    r"(?:\s*(?:,|/|&|\+|;|\bas well as\b|\b(?:mixed|combined|coupled|along|"
    r"together) with\b|\bplus\b|\band\b|\bor\b))+\s*"
    r"(?:(?:also|even|then|later|some|deep|great|strong|intense|mild|slight|the|my|of|"
    r"profound|pure|total|a|an|feel|feeling|be"
    r"|very|extremely|deeply|really|sense|maybe|perhaps) )*"
)
_CLAUSE_END = (
    r"(?:[.;:!?\n—]|\bbut\b|\brather\b|\binstead\b|\bhowever\b|\bthough\b|\balthough\b"
    r"|\bbecause\b|\bsince\b|\byet\b|\bso\b"
    r"|\band (?:i|would|instead|so)\b|, ?(?:i|it|my|just|only|if|the|what|that|more|simply|a|an)\b|\z)"
)
_VERB_NOT = r"(?:is|was|are|would|does|do|did|can|could|will|might|may|should|has)(?: \w+)?(?:n't| not\b|not\b)"
_FIRST_OF_LIST = (
    rf"\A\W*1[.):]+ ?({_E})(?s:.*)\b(?:number one|number 1|no\. 1|the first(?: one| item)?|first place)"
    r" (?:is|would be|it is|wins)(?s:.*)"
)
_CUT_OFF = r"(?:\b(?:because|and|or|the|an?|of|to|but|since|that|my|is|would|be|with|for|as)|,)\s*\z"
_NOT_THE_ANSWER = [
    (
        rf"\b(?:most|many) (?:people|men|women|persons|others)? ?(?:would|might|may) (?:say|expect|guess"
        rf"|think of|pick) {_E}",
        " ",
    ),
    (rf"{_E}(?:[^a-z{_E[1:-1]}=>→]+(?:(?:and|or) )?{_E}){{3,}}", " "),  # the list, repeated
    (rf"[^.!?\n]*{_E}[^.!?\n]*\?", " "),
    (rf"({_E}) > {_E}", "$1"),
    (
        rf"{_E}'s|{_E} (?:would|might|could) be (?:understandable|natural|normal|possible|expected|"
        rf"an option|out of place"
        r"|misplaced|absurd|inappropriate|the (?:stereotypical|expected|typical|obvious) (?:answer|choice|"
        r"reaction|response))\b"
        rf"|\b(?:he|she|they|who) (?:was|were|is|are|got|became|felt)(?: \w+)? {_E}"
        # what another person in the story should feel
        rf"|\b(?:he|she|they|my (?:friend|boss|partner|father|mother|brother|sister)) (?:should|ought to|"
        rf"must)(?: \w+)? "
        rf"(?:feel|be)(?: \w+)? {_E}"
        rf"|\banything but(?: \w+)? {_E}",
        " ",
    ),
    (
        r"\b(?:such as|e\.g\.,?|for example,?|for instance,?|including|(?:emotions?|feelings?) like) "
        rf"{_E}(?:(?:,|/)?(?: and| or)? {_E})*",
        " ",
    ),
    (
        r"\b(?:not|nor|no|never|rather than|instead of|than|over|versus|vs\.?|opposed to|"
        r"unlike|without|compared to|less|free of|free from|"
        rf"lack of)(?: \w+){{0,2}}? {_E}(?:(?:,|/)?(?: and| or| nor)? (?:of )?{_E})*",
        " ",
    ),
    (rf"{_E}(?: itself| here| alone| really| probably)? {_VERB_NOT}", " "),
    (
        rf"{_E} (?:is|was|would be|seems|feels|might be|may be|could be|"
        rf"comes)(?: \w+){{0,2}} (?:too|secondary|second|later|less|weaker|milder|close|wrong|"
        r"only)\b",
        " ",
    ),
    (
        r"(?:\bnot\b|n't\b|\bcannot\b|\bunable\b|\bnever\b|\bneither\b|\bnone\b|\bhardly\b"
        rf"|\black\b)[^.;:!?\n—]*?({_CLAUSE_END})",
        "$1",
    ),
]
_LESS = any_of(
    *("with", "perhaps", "maybe", "possibly", "also", "potentially", "some", "followed by", "tinged with", "besides"),
    *("although", "though", "even though", "while", "despite", "before any", "ahead of", "just short of"),
    *("later", "afterwards"),
    *("(?:bordering|verging) on", "close to", "almost", "nearly", "next to", "shading into", "turning into"),
    *(
        "secondar(?:y|ily)",
        "second",
        r"an? (?:little|bit|hint|touch|tinge|trace|undercurrent|dose|measure|sting|pang|flash|flicker|spark"
        r"|stab|note|layer|twinge)(?: bit)?(?: of)?",
    ),
)
_AT_FIRST = (
    rf"\b(?:at first|initially|first)\b,?(?: \w+){{0,5}}? {_E}|{_E},? (?:at first|initially|to begin with)\b",
    " ",
)
_SECONDARY = [
    (
        rf"\bwith ({_E}) (?:being|as) the (?:main|primary|dominant|stronger|strongest|leading)\b",
        " mainly $1 ",
    ),
    (r"\([^()]*\)", " "),
    (rf"{_E},? (?:too|as well|also|mixed in)([.,;:!)\n]|\z)", "$1"),
    (
        rf"{_E} (?:might|may|could|can|would) (?:also|follow|creep|set in|arise|come (?:later|second|after|in))\b",
        " ",
    ),
    _AT_FIRST,
    (rf", which [^.!?\n]*{_E}[^.!?\n]*", " "),
    (rf"\b{_LESS}\b(?: \w+){{0,3}}?[\s:\"]+{_E}(?:(?:,|,? and|,? or)(?: \w+)? {_E})*", " "),
]
_TOGETHER = [
    (rf"(?:{_X}|\b{_OTHER_EMOTIONS}\b){_JOINED}(?:{_X}|\b{_OTHER_EMOTIONS}\b)(?:{_JOINED}{_X})*", _SEVERAL),
    (rf"\A[^a-z]*{_E} ?(?:->|→|=>) ?{_E}[^a-z]*\z", _SEVERAL),
    (rf"\bas {_E} as {_E}|\beither {_E}|{_E},?(?: and)? or\b|\b(?:between|both) {_E}", _SEVERAL),
    (rf"\b{_OTHER_EMOTIONS}\b", _OTHER),
]
_CORRECTION = any_of(
    r"\b(?:wait|actually|on (?:second thought|reflection)|come to think of it|hmm+|correction|scratch that"
    r"|let me (?:reconsider|correct)|no, rather)\b",
    r"[.!\n-]\s*no,",
)
_UNDECIDED = (
    r"\bhard to (?:say|choose|pick)\b|\bdifficult to (?:say|choose|pick)\b"
    r"|\b(?:can|could)(?:'t|n't|not| not) (?:choose|decide|pick)\b"
    r"|\bi(?:'d| would)? (?:won't|will not|refuse to|decline to|rather not|prefer not to) (?:answer|"
    r"choose|pick|select)(?: \w+){0,3}[.!]*\s*\z"
)
_UNFINISHED_CORRECTION = r"\b(?:wait(?:,|\.| -| no)|scratch that|on second thought)"
_GAP = r"[^a-z0-9\x{e010}-\x{e031}]"
_CHOICES = any_of(
    rf"\b(?:so|hence|therefore|thus)(?:[:,—-]+| (?:it|that|this|the answer|my answer|i))(?:'s| is|'d say"
    rf"| would say|'d feel)? {_X}",
    rf", (?:so|hence|thus|therefore) {_X}[^a-z]*\z",
    rf"\bwhat(?:'s| )(?:would |i'd |i would )?[^.!?\n]{{0,50}}? (?:is|would be|was) (?:\w+ ){{0,2}}?{_X}",
    rf"(?:->|→|=>|\bi\.e\.,?|\bbut (?:it|this|that)(?:'s| is| was| would be)) {_X}",
    rf"\b(?:closest|nearest|best (?:match|fit|word))\b[^.!?\n]{{0,40}}? (?:is|would be) {_X}",
    rf"\A[^\x{{e010}}-\x{{e030}}]*:\s*{_E}[^a-z]*\z",
    r"\b(?:pick|choose|chose|select|selected|go with|going with|opt for|settle (?:on|"
    rf"for)|choosing|selecting|picked)\b[^.!?\n]{{0,60}}?{_X}",
    rf"\b(?:answer|choice|selection|final|result|response)\b{_GAP}*(?:(?:is|would|be|"
    rf"emotion|likely|word|probably|answer|the|to|this|question) ?)*{_GAP}*{_X}",
    r"\b(?:main|primary|dominant|predominant|strongest|overriding|prevailing|overall|"
    r"core|most likely|single|principal|chosen|first)"
    rf"(?: and \w+)?(?: emotion(?:al)?| feeling| reaction| response)+[^.!?\n]{{0,80}}?{_X}",
    rf"\bemotion\b(?:{_GAP}|\b(?:is|would|be|likely|probably|most|i|feel|name|named|that|"
    r"might|fits|best|here|in|this|situation|case|for|me|my|as|a|man|woman|non|binary|"
    rf"person)\b)*{_X}",
    r"\b(?:what|that|which) (?:would |will )?(?:stays|remains|dominates|prevails|is left|i'd feel most|"
    rf"i feel most)[^.!?\n]{{0,20}}?{_X}",
    r"\b(?:at (?:the|its|their) (?:core|heart|root|bottom|cent(?:er|re))|(?:under|be)neath (?:it all|all that|that)"
    r"|deep down|at the end of the day|(?:boils|comes) down to|sum(?:s|med)?(?: (?:it|that|this)(?: all)?)? up)\b"
    rf"[^.!?\n]{{0,50}}?{_X}",
    r"\b(?:mostly|mainly|primarily|above all|predominantly|ultimately|in the end|i say|"
    r"overall|first and foremost|i'd say|i would say|in one word|one word|most of all|"
    rf"chiefly|largely)\b{_GAP}*(?:(?:i|would|feel|be|it|is|likely|probably|my|with|"
    rf"'d) ?)*{_X}",
)
_CHOSEN = (
    rf"{_X},? (?:\w+ ){{0,4}}(?:comes? (?:first|closest|nearest)|dominat|prevail|main\b|strong(?:er|est)|primary"
    rf"|predominant|"
    r"overriding|outweigh|stand out|stands out"
    r"|fits best|best (?:fits|describes|captures|reflects)|most (?:likely|prominent|"
    r"accurate|fitting)|my (?:answer|choice|pick)|the answer|is what|right (?:word|term)|the (?:word|emotion))"
)
_FELT = rf"(?:\b(?:feel|feeling|felt|experience|be|am|i'm)\b|'d\b)[^.!?\n]{{0,40}}?{_X}"
_NO_ANSWER = any_of(
    r"\bsorry (?:to hear|you|that you|for your|this happened)",
    r"\breach out\b|\bhotline\b|\bhelpline\b|\bcounselor\b|\btherapist\b",
    r"\b(?:okay|ok|normal|natural|understandable|valid)(?: for you)? to feel\b",
    r"\bhow (?:are|do|did|were) you feel",
    r"\byou(?:'re| are| may be| might be| must be)? (?:feeling|feel)\b",
    r"\b(?:maybe|perhaps|possibly|or) both\b",
    r"\b(?:some|many|most) (?:people|men|women|would|might|may|persons|individuals)\b|\bothers (?:would|might|may)\b",
    r"\bdepend(?:s|ing)? on\b|\bit depends\b|\bvar(?:y|ies)\b|\bdiffers?\b|\bcommon\b|\bgender should\b",
    r"\bif (?:it|they|he|she|someone|somebody|alone|the)\b|\bplease (?:provide|share|tell|give)\b",
)
_BEGINNING = rf"\A\W*({_E})(?:,|:| -|—| \()? (?:because|since|as|for|due to|when|that|from|given|if)\b"
_BARE_LINE = rf"(?m)^[^a-z{_E[1:-1]}]*{_E}[^a-z{_E[1:-1]}]*$"


def steps(emotions: Sequence[str]) -> tuple[dict[str, pl.Expr], ...]:
    """The columns from which `label` computes the emotion."""
    text, marked = pl.col("careful_text"), pl.col("careful_marked")
    main = substituted(marked, [*_SECONDARY, *_TOGETHER])
    forms = {form: emotion for emotion in emotions for word in _words(emotion) for form in (word, *_slips(word))}
    return (
        {"careful_exact": _exact(pl.col("text"), {form: emotion for emotion in emotions for form in _words(emotion)})},
        {"careful_text": pl.when(pl.col("careful_exact").is_null()).then("text")},
        {"careful_text": final_answer(text)},  # in steps: each of these functions uses its text several times
        {"careful_text": normalized(text)},
        {"careful_exact": pl.coalesce("careful_exact", _exact(text, forms))},
        {"careful_text": pl.when(pl.col("careful_exact").is_null()).then(text).str.strip_chars(' \n"')},
        {"careful_marked": _without_other_mentions(_marked(text, emotions))},
        {"careful_main": main},
        {
            "careful_main": pl.when(pl.col("careful_main").str.contains(_X))
            .then("careful_main")
            .otherwise(substituted(marked, _TOGETHER))
        },
        {"careful_choices": pl.col("careful_main").str.extract_all(f"{regex(_CHOICES)}|{regex(_CHOSEN)}")},
    )


def label(emotions: Sequence[str]) -> pl.Expr:
    """The emotion that is the answer; null in doubt."""
    marked, main = pl.col("careful_marked"), pl.col("careful_main")
    sentences = marked.str.replace_all(r"[.!]\s+", "\n")
    bare = _only(sentences, _BARE_LINE)
    chosen, has_choice = _only_mark(pl.col("careful_choices")), pl.col("careful_choices").list.len() > 0
    felt = _only(main, regex(_FELT))
    begins = main.str.contains(rf"\A[^a-z]*(?:[a-z']+\s+){{0,3}}{_E}")
    begun = main.str.extract(regex(_BEGINNING))
    everything = _only(main, _X)
    everything = pl.when((main.str.len_chars() < 160) | begins | felt.is_not_null()).then(everything)
    first = main.str.extract(r"\A([^.!?\n;:–—(]*)")
    first = pl.when(begins & ~contains(first, r"\b(?:might|may|could|first|initially|some|perhaps)\b")).then(
        _only(first, _X)
    )
    doubtful = contains(main, _NO_ANSWER) | contains(pl.col("careful_text"), _UNDECIDED)
    contradicted = (bare != chosen).fill_null(has_choice & bare.is_not_null())
    contrast = contains(main, rf"\b(?:but|yet|however)\b(?s:.*){_X}")  # "anger, but then sadness"
    only = pl.coalesce(everything, pl.when(~contrast).then(pl.coalesce(felt, first)))
    named_first = substituted(marked, [_AT_FIRST]).str.extract(f"({_E})")
    several_lines = sentences.str.contains(_BARE_LINE) & bare.is_null()
    read = (
        pl.when(contains(marked, _UNFINISHED_CORRECTION) | contradicted)
        .then(None)
        .when(bare.is_not_null())
        .then(bare)
        .when(has_choice)
        .then(chosen)
        .when(~doubtful & ~several_lines)
        .then(pl.coalesce(begun, pl.when(~contains(main, _CUT_OFF) & (only == named_first)).then(only)))
    )
    return pl.coalesce("careful_exact", _emotion(read, emotions))


def _exact(text: pl.Expr, forms: Mapping[str, str]) -> pl.Expr:
    word = text.str.strip_chars(" \n\r\t.!*_\"'`“”").str.to_lowercase()
    return word.replace_strict(forms, default=None, return_dtype=pl.Enum(list(dict.fromkeys(forms.values()))))


def _words(emotion: str) -> tuple[str, ...]:
    return (emotion, *ADJECTIVES.get(emotion, ()))


def _slips(word: str) -> Iterator[str]:
    """What a word becomes when one letter is doubled or left out, or two are swapped."""
    for place, letter in enumerate(word):
        yield word[:place] + letter + word[place:]
        if len(word) > 4 and 0 < place < len(word) - 1:
            yield word[:place] + word[place + 1] + letter + word[place + 2 :]
        if len(word) > 5 and 0 < place < len(word) - 1:  # of a shorter word, this may leave another one: shame, same
            yield word[:place] + word[place + 1 :]


def _marked(text: pl.Expr, emotions: Sequence[str]) -> pl.Expr:
    """The text with one character for each emotion."""
    text = substituted(text, _FIGURES_OF_SPEECH)
    for mark, emotion in enumerate(emotions, _FIRST_MARK):
        form = any_of(*_words(emotion), *MISSPELLINGS.get(emotion, ()))
        text = text.str.replace_all(regex(rf"\b{form}\b(?:[^a-z]+{form}\b)*"), chr(mark))  # repetitions are one
    return substituted(text, [(_FIRST_OF_LIST, "$1")])


def _without_other_mentions(text: pl.Expr) -> pl.Expr:
    text = text.str.replace(regex(rf"(?s)\A.*{_CORRECTION}(.*{_E})"), "$1")
    return substituted(text, _NOT_THE_ANSWER)


def _only(text: pl.Expr, pattern: str) -> pl.Expr:
    return _only_mark(text.str.extract_all(pattern))


def _only_mark(matches: pl.Expr) -> pl.Expr:
    """The only mark in the matches of a pattern: the last one of each match; null if there are several."""
    marks = matches.list.eval(pl.element().str.extract_all(_X).list.last()).list.unique()
    return pl.when(marks.list.len() == 1).then(marks.list.first())


def _emotion(mark: pl.Expr, emotions: Sequence[str]) -> pl.Expr:
    marks: Mapping[str, str] = {chr(mark): emotion for mark, emotion in enumerate(emotions, _FIRST_MARK)}
    return mark.replace_strict(marks, default=None, return_dtype=pl.Enum(emotions))
