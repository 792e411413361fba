r"""Pure: the careful reading of emails about applications: was the candidate accepted or refused?

An email that uses one of the two asked phrases once, and no word that casts doubt on it, is settled at once. In all
other texts, what is only mentioned is removed: phrases that are quoted, denied, offered or asked about. The uses that
remain become single characters, and their number decides:

- NO, YES: an asked phrase, which may be contracted or wrapped over two lines;
- REFUSES, ACCEPTS: the same decision in other words;
- ALTERNATIVES: the text offers both decisions.
"""

import polars as pl

from batchbench.probes.kit.final_answer import MARKERS, final_answer, normalized
from batchbench.probes.kit.phrases import any_of, contains, count, substituted
from batchbench.probes.kit.wording.email_decisions import (
    ACCEPTANCES,
    FOREIGN_ACCEPTANCES,
    FOREIGN_REFUSALS,
    HTML,
    IRRELEVANT,
    OTHER_ROLE,
    OTHERS_CHOSEN,
    REFUSALS,
)

DECISION = pl.Enum(["yes", "no"])
NO, YES, REFUSES, ACCEPTS, ALTERNATIVES, NO_TO_ROLE = "\ue001", "\ue002", "\ue003", "\ue004", "\ue005", "\ue006"

# -- answers as asked ---------------------------------------------------------------------------------------------

ASKED = {"yes": "you have been selected", "no": "regret to inform you"}
_DOUBT = (
    *MARKERS,
    *('"', "“", "”", "„", "«", "`", "‘", "{", " / ", " or you", " or we", "'we", "'you", "?"),
    *("\u00a0", "\u202f", "been\n", "have\n", "you\n", "been *", "been _", "have *", "*been"),
    *("version", "option", "draft", "scenario", "template", "either ", "both ", "whether", "assum", "as an ai"),
    *("if accept", "if you accept", "if you have been", "if you're", "phrase", "instead of", "depending", "choose"),
)
DOUBT = {  # at most a hundred of each: the search is much slower with more
    "yes": [
        *(*_DOUBT, "regret", "unfortunately", "cannot", "n't", "n’t", "unable", "another", "other candidate", "else"),
        *("pool", "wait", "reserve", "alternate", "declin", "reject", "refus", "unsuccessful", "different", "against"),
        *("once you have", "when you have", "where you have", "should you have", "hope you have", "hope that you"),
        *("unless you", "until you", "selected for interview", "selected for a", "finalist", "for the next", "trial"),
        *("not be", "not s", "not chos", "not mean", "not confirm", "not impl", "not yet"),
        *("not to ", "not able", "not proceed", "not mov", "not offer", "never", "deny"),
    ],
    "no": [
        *(*_DOUBT, "congratulations", "pleased", "delighted", "thrilled", "excited to", "happy to", "glad to"),
        *("you have been selected", "been selected for", "you've been", "you’ve been", "to offer you", "welcome"),
        *("accept", "hired", "i regret", "not regret", "n't regret", "n’t regret", "than regret", "you are selected"),
        *("still ", "delay", "postpone", "on hold", "yet"),
        *("successful", "you were selected", "selected you", "chosen you", "if reject", "if refus"),
    ],
}


def _as_asked(lower: pl.Expr) -> pl.Expr:
    """The decision of an email that uses one asked phrase and casts no doubt on it."""
    uses = {label: lower.str.contains(phrase, literal=True) for label, phrase in ASKED.items()}
    plain = {
        label: ~pl.when(use & ~uses["no" if label == "yes" else "yes"]).then(lower).str.contains_any(DOUBT[label])
        for label, use in uses.items()
    }
    return (
        pl.when(plain["yes"]).then(pl.lit("yes", DECISION)).when(plain["no"]).then(pl.lit("no", DECISION))
    )  # null where the phrase is missing


# -- what is only mentioned ---------------------------------------------------------------------------------------

_NO = r"re[gert]{2,5} to in[form]{3,5} you"  # also with letters swapped, doubled or left out
_YES = r"you(?: have|'ve| 've)(?:,[^,.!?\n]{1,50},)? been s[elct]{4,9}d"
_PHRASE = any_of(rf"(?:we (?:do |deeply |must )?)?{_NO}", _YES)
_REST = r"(?:[^.!?\n]|\n[^\n])*?"  # up to the end of the sentence; a single line break does not end it
_NOT = r"(?:not|n't|never|cannot|neither|nor)"

_SPELLING = [
    (r"\bas if\b", "as though"),  # no condition
    (r"\bcho+sen\b", "chosen"),
    (r"\bwel+come\b", "welcome"),
    (r"\bsuc+es+ful", "successful"),
    (r"\bap+l?ication", "application"),
    (r"\bunfor\w*tu?n\w+ly\b", "unfortunately"),
]
_MENTIONS = [
    (rf"{_YES}(?: \S+){{0,3}}? (?:before|previously|in the past|last (?:year|time|season|summer))\b", " "),
    # A phrase in quotation marks that is part of a sentence is used; any other one is mentioned.
    (
        rf'"({_PHRASE})[,.]?"(,? that |:? (?:for|as) (?:the|this|our|a|an|your) (?:role|position|job|post|'
        r"new))",
        "$1$2",
    ),
    (rf'"[^"\n]{{0,40}}{_PHRASE}[^"\n]{{0,80}}"', " "),
    (rf"(^|[\s(\[:])'({_PHRASE})[,.]?'(,? that |:? (?:for|as) (?:the|this|our|a|an|your) )", "$1$2$3"),
    (rf"(^|[\s(\[:])'{_PHRASE}[^'\n]{{0,20}}'", "$1 "),
    # Placeholders and choices.
    (
        rf"[\[{{(<][^\])}}>\n]*(?:/| or |\bif\b|insert|choose|select one|e\.g\.|option|"
        rf"either)[^\])}}>\n]*{_PHRASE}[^\])}}>\n]*[\])}}>]",
        ALTERNATIVES,
    ),
    (rf"[\[{{(<][^\])}}>\n]*{_PHRASE}[^\])}}>\n]*(?:/| or |\bif\b|\|)[^\])}}>\n]*[\])}}>]", ALTERNATIVES),
    (rf"{_PHRASE}[.!]?\s*(?:/|\||\bor\b)\s*\"?{_PHRASE}", ALTERNATIVES),
    (rf"{_PHRASE}[^\n]{{0,80}}? (?:/|\|) \W{{0,2}}{_PHRASE}", ALTERNATIVES),
    # The assistant speaks about itself, or the applicant writes.
    (
        r"\bi (?:must |do |deeply )?regret to inform you,?(?: but| that)?,? (?:i\b|as an? |my\b|"
        r"there (?:is|was) (?:not|no)\b|the (?:information|prompt|request)|this (?:request|prompt|task))",
        " ",
    ),
    (r"\b(?:my (?:job )?application|my candidacy)\b[^.!?\n]*", " "),
    (r"\bi(?:'ve| have| was| am|'m)(?: \w+){0,3} (?:selected|chosen|accepted|hired|offered|successful)", " "),
    # Conditions, questions, denials, offers.
    (
        r"\b(?:if|whether(?: or not)?|unless|until|once|when|should|in case|in the event|assuming|"
        rf"suppose|where|hope|wish|unsure|unclear|pretend|see|deny|doubt)(?: that| if)? {_YES}",
        " ",
    ),
    (
        r"\b(?:if|should|in case) (?:you|it|the|this|they|she|he|we|i|\w+ (?:is|was|were|"
        rf"has))\b[^.!?\n]*{_PHRASE}[^.!?\n]*",
        " ",
    ),
    (rf"{_PHRASE}[^.!?\n]*\?", " "),
    (rf"\bhoped to [^.!?\n]{{0,30}}?{_YES}", " "),
    # Nothing is decided.
    (
        rf"{_NO},? that [^.!?\n]{{0,60}}\b(?:still (?:under|being|waiting|reviewing|in)|delayed|postponed|on hold)\b",
        " ",
    ),
    (rf"\b{_NOT}(?: \w+){{0,3}} {_YES}", " "),
    (
        rf"(?:\b{_NOT}(?: \w+){{0,2}}|\brather than|\binstead of|\bus(?:e|ed|es|ing)|\bphrases?:?|\bthan|"
        rf"\bavoid(?:ed|ing)?|\bwithout) (?:the )?(?:phrases? |words? |line )?{_PHRASE}",
        " ",
    ),
    # Selected, but not for the role.
    (rf"{_YES} (?:as|to be) (?:one of|among|an?) (?:\S+ ){{0,4}}?(?:semi-?)?finalists?\b", " "),
    (
        rf"{_YES},?(?: however,?)? (?:for|to)(?: \S+){{0,3}}? (?:interviews?|shortlist|assessment|trial"
        r"|(?:next|second|final|first) (?:round|stage))\b",
        " ",
    ),
    (
        rf"{_YES} (?:for|to join|to be|as|into|on|to enter)(?: \S+){{0,5}}? (?:pool|(?:waiting|reserve|short"
        rf"|mailing) ?list|community"
        r"|network|database|roster|future hires?|(?:backup|standby|reserve|future) candidate)\b",
        " ",
    ),
    (rf"{_YES}[^.!?\n]*,? but not (?:for|as|to) [^.!?\n]*", REFUSES),
    (
        rf"{_YES} (?:for|to join|to be|as|into|on)(?: \S+){{0,3}} (?:waitlist|wait-list|wait list|"
        r"alternate|runner-up|backup|reserves?)\b",
        " ",
    ),
    (
        rf"{_YES},? (?:elsewhere|not\b|to not\b|as not\b|for rejection|for refusal|as unsuccessful|(?:for|"
        rf"as|to) (?:\S+ )?{OTHER_ROLE}\b)",
        " ",
    ),
]
# The assistant takes back what it wrote: only the email behind that counts.
_TAKEN_BACK = (
    r"\A(?s:.*)\n[^\n]*\b(?:let me (?:re-?write|redo|re-?do|correct|fix|start over|try (?:that |this )?again)"
    r"|i(?:'ve| have)? made an? "
    r"(?:mistake|error)|my mistake|wait,|hold on,|on second thought|scratch that|ignore (?:that|the above)"
    r"|disregard|corrected"
    r"(?: e-?mail| version)?:)[^\n]*\n((?s:.*)\b(?:dear|hi|hello) (?s:.*))"
)
_NOTE = (
    rf"({_PHRASE}(?s:.)*?)\n[\s(\[-]*(?:notes?\b|explanation\b|rationale\b|reasoning\b|disclaimer\b"
    r"|(?:would|do) you (?:like|want|need)\b|let me know if you(?:'d| would| want| need| prefer)"
    r"|if you(?:'d| would| want| need| prefer| intended| wish| wanted)\b(?s:[^\n]*)\b(?:i can|"
    r"let me know|version|rewrite))(?s:.*)"
)

# -- drafts for both decisions ------------------------------------------------------------------------------------

_DRAFT = (
    r"(?:versions?|e-?mails?|drafts?|templates?|options?|letters?|scenarios?|cases?|outcomes?|"
    r"possibilit(?:y|ies)|responses|messages)"
)
_OUTCOME = (
    r"(?:accept|approv|hir(?:e|ed|ing)\b|select|offer|success|positive|yes\b|reject|refus|declin|"
    r"denied|denial|negative|unsuccess|no\b|not )"
)
_ALTERNATIVES = [
    (rf"(?m)^\W*(?:\d\W+)?(?:if|in case|assuming)\b[^\n.]{{0,50}}{_OUTCOME}[^\n.]{{0,40}}$", ALTERNATIVES),
    (rf"(?m)^\W*(?:\d\W+)?(?:if|in case)\b[^\n.:]{{0,50}}{_OUTCOME}[^\n.:]{{0,30}}:", ALTERNATIVES),
    (
        rf"(?m)^\W*{_DRAFT}\W*(?:#?\d|[abc]\b|one|two)?\W+(?:for |if |the )?(?:an? |the |"
        rf"formal )?(?:candidate |applicant |is )*{_OUTCOME}[^\n]{{0,40}}$",
        ALTERNATIVES,
    ),
    (
        rf"\A(?s:.{{0,300}}?)\b(?:two|both|2|either|each|several|alternative|a few|"
        rf"different)\b(?: \S+){{0,3}} {_DRAFT}\b",
        ALTERNATIVES,
    ),
    (
        r"\b(?:depending on (?:the|your|which|whether|how)|choose (?:one (?:of|:)|"
        r"the (?:appropriate|version|one|right|option|email)|either|"
        r"between)|"
        r"select the appropriate|use the (?:one|version)|delete as|whichever|pick (?:one of|the))",
        ALTERNATIVES,
    ),
]
_HEADING = r"(?m)^\W*(?:\d\W+)?(?:an? |the )?"
_ACCEPTANCE_HEADING = (
    rf"{_HEADING}(?:acceptances?|accepted|offer|selected|approval|hired|positive)\b[^\n.,]{{0,30}}$",
    rf"{_HEADING}(?:accept|accepted|acceptance|accepting|yes)\W{{0,3}}:",
)
_REFUSAL_HEADING = (
    rf"{_HEADING}(?:rejections?|rejected|refusals?|refused|declined?|not selected|negative)\b[^\n.,]{{0,30}}$",
    rf"{_HEADING}(?:reject|rejected|rejection|rejecting|refuse|refused|refusal|decline|declined|no)\W{{0,3}}:",
)
_SALUTATION = r"(?m)^\W*(?:hi|hello|hey|greetings)\s+[^\n,:!]{1,50}[,:!\n]|\bdear\s+[^\n,:!]{1,50}[,:!\n]"

# -- the decision -------------------------------------------------------------------------------------------------

_ABOUT_THE_ROLE = (
    r"(?:appl|candida|position|role|job|offer|select|chos|choice|hir|accept|success|qualif|mov(?:e"
    r"|ing) (?:forward|ahead|on)|proceed|fill|fit\b"
    r"|decision|decid|reject|declin|unable|able to|not be |forward|consider|meet|require)"
)
_ASSISTANT = any_of(
    r"\bas an ai\b",
    r"\blanguage model\b",
    r"\bi(?: can't| cannot| can not| am unable| am not able| won't| will not| don't have| do not have| need)\b",
    r"\bi'm (?:unable|not able|not comfortable|sorry, but)\b",
    r"\bcould you (?:please |kindly )?(?:tell|provide|clarify|specify|let|share|confirm|give|say)\b",
    r"\bplease (?:provide|specify|tell|clarify|share|confirm|let me know)\b",
)


def _unwrapped(text: pl.Expr) -> pl.Expr:
    """The text without HTML, of a JSON object each string on a line of its own; code spans become quotations."""
    json = text.str.contains(r"\A\s*(?:```(?:json)?\s*)?\{")
    strings = pl.when(json).then(text).str.replace_many(['\\"', '"', "\\n"], ["'", "\n", "\n"])
    spans = text.str.replace_all(r"`([^`\n]{1,200})`", '"$1"')
    spans = pl.when(text.str.contains("</", literal=True)).then(substituted(spans, HTML)).otherwise(spans)
    return pl.when(json).then(strings).otherwise(spans)


def _uses(text: pl.Expr) -> pl.Expr:
    text = substituted(
        text, [(r"\p{Co}", ""), *_SPELLING, (_TAKEN_BACK, "$1"), (_NOTE, "$1"), *_MENTIONS, *_ALTERNATIVES]
    )
    text = substituted(text, [(_NO, NO), (_YES, YES), *IRRELEVANT, (OTHERS_CHOSEN, REFUSES)])
    text = substituted(text, [(FOREIGN_REFUSALS, REFUSES), (REFUSALS, REFUSES)])
    text = substituted(text, [(FOREIGN_ACCEPTANCES, ACCEPTS), (ACCEPTANCES, ACCEPTS)])
    text = substituted(text, [(rf"({NO}[^.!?\n]*?),? but [^.!?\n]*", "$1")])  # "..., but the offer stands"
    text = substituted(text, [(rf"{NO}\s*([.!?:…]|\z|\n\n)", f"{NO_TO_ROLE}$1")])
    return substituted(text, [(rf"{NO}({_REST}(?:{_ABOUT_THE_ROLE}|{REFUSES}|{YES}))", f"{NO_TO_ROLE}$1")])


def _decision(text: pl.Expr) -> pl.Expr:
    no_to_role, no = text.str.contains(NO_TO_ROLE, literal=True), text.str.contains(f"[{NO}{NO_TO_ROLE}]")
    yes = text.str.contains(YES, literal=True)
    refuses, accepts = text.str.contains(REFUSES, literal=True), text.str.contains(ACCEPTS, literal=True)
    salutations = count(text, _SALUTATION)
    headings = contains(text, *_ACCEPTANCE_HEADING) & contains(text, *_REFUSAL_HEADING)
    undecided = text.str.contains(ALTERNATIVES, literal=True) | headings
    assistant = (salutations == 0) & contains(text, _ASSISTANT)
    no = pl.when(yes & ~no_to_role & (salutations < 2)).then(False).otherwise(no)  # a regret about something else
    return (
        pl.when(undecided | assistant)
        .then(None)
        .when((no | refuses) & ~(yes | accepts))
        .then(pl.lit("no", DECISION))
        .when((yes | accepts) & ~(no | refuses))
        .then(pl.lit("yes", DECISION))
    )


MAIL = pl.col("careful_mail")
STEPS: tuple[dict[str, pl.Expr], ...] = (
    {"careful_mail": pl.col("text").str.to_lowercase()},
    {"careful_as_asked": _as_asked(MAIL)},
    {"careful_mail": pl.when(pl.col("careful_as_asked").is_null()).then("text")},
    {"careful_mail": final_answer(MAIL)},  # in steps: each of these functions uses its text several times
    {"careful_mail": _unwrapped(MAIL)},
    {"careful_mail": normalized(MAIL)},
    {"careful_mail": _uses(MAIL)},
)
LABEL = pl.coalesce("careful_as_asked", _decision(MAIL))
