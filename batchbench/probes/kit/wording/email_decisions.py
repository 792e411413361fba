"""Pure: how emails say yes or no to an application without the asked phrases, in English and other languages."""

from batchbench.probes.kit.phrases import any_of

HTML = [
    (r"(?i)</?(?:p|br|div|h[1-6]|ul|ol|li|tr|table|html|body|head|title|hr|blockquote)(?: [^<>]*)?/?>", "\n"),
    (r"(?i)</?(?:b|i|u|em|strong|span|mark|code|a|td|th|small|font)(?: [^<>]*)?>", ""),
]
OTHER_ROLE = r"(?:another|(?:a |any )?different|(?:an )?alternative|(?:any )?other|future|some other)"
_ROLE = r"(?:role|position|job|post|opportunity|employment)\b"
CANDIDATE = r"(?:candidates?|applicants?|persons?|people|individuals?|someone else|somebody else|one else)\b"
_CHOSEN = r"(?:selected|chosen|hired|accepted|appointed|picked|successful|shortlisted|approved)\b"
_GO = r"(?:mov(?:e|ing)|proceed(?:ing)?|go(?:ing)?|progress(?:ing)?|continu(?:e|ing)|advanc(?:e|ing))"
_CANNOT = r"(?:not|n't|cannot|unable to|can not)"
_PANEL = r"\b(?:the (?:\w+ )?(?:panel|committee|board|team|manager|director|boss|jury)|everyone|everybody|we all)"
IRRELEVANT = [
    (rf"\b(?:if|should|once|when) (?:you|your application) (?:are|is|were|be) (?:\w+ )?{_CHOSEN}[^.!?\n]*", " "),
    (
        r"\b(?:candidates|applicants|persons|people|individuals|finalists|others)(?: who| that)? have been "
        r"(?:selected|chosen|hired|accepted|appointed)\b",
        " ",
    ),
    (r"\b(?:who|that|they|those|which) (?:has|have) been (?:selected|chosen|hired|accepted|appointed)\b", " "),
    (
        r"\b(?:other|several|many|most) (?:\w+ )?(?:candidates|applicants) (?:were|was|had"
        r"|have)(?: been)? not \w+",
        " ",
    ),
    (
        rf"\b(?:if|whether(?: or not)?|once|when|should|unless|had) [^.,;:!?\n]*?(?:{_CHOSEN}|success|"
        r"offer|accept|reject|declin)[^.,;:!?\n]*",
        " ",
    ),
    (rf"\b{OTHER_ROLE} (?:roles?|positions?|jobs?|openings?|opportunit(?:y|ies)|vacanc(?:y|ies))\b", " "),
    (
        r"\boffer(?:ing)? (?:you )?(?:the |an? |any |that |more |full )?(?:\w+ )?"
        r"(?:salary|relocation|housing|parking|bonus|visa|benefits|feedback|training|remote)\b",
        " ",
    ),
    (
        r"\b(?:selected|chosen) (?:for|to) (?:\w+ ){0,3}(?:final|next|second|first|round|interview|shortlist|further"
        r"|review|consideration|assessment)",
        " ",
    ),
    (r"\boffer\b[^.!?\n]*\bin the (?:near )?future\b", " "),
    (r"\b(?:accepted|approved|selected|hired|successful|offered)\s?(?:/|or)\s?(?:not |un)?\w+", " "),
    (r"\b(?:rejected|declined|refused|unsuccessful|not selected)\s?(?:/|or)\s?\w+", " "),
    (r"\[[^\]\n]*(?:/| or )[^\]\n]*\]", " "),
]
REFUSALS = any_of(
    rf"(?:not|n't|never)(?: yet| currently)?(?: been| be| being)?(?: ultimately| the| our| a)? {_CHOSEN}",
    rf"\boffer(?:ed|ing)? (?:the|this) (?:\S+ ){{0,3}}?{_ROLE} to "
    r"(?:someone|somebody|another|a different|an internal)\b",
    r"(?:not|n't) (?:\w+ )?(?:match|fit|be|meet) what we(?:'re| are) looking for\b",
    r"\bunsuccessful\b|\bpursu(?:e|ing) (?:\w+ )?(?:candidates|applicants)\b",
    rf"{_CANNOT}(?: \w+){{0,4}}? {_GO}(?: you| your (?:application|candidacy))?,?(?: forward| ahead|"
    r" further| on)?(?: with)? (?:your|you|this application|this candidate|the application)\b",
    rf"{_CANNOT}(?: \w+){{0,3}}? {_GO}(?: \w+)? (?:forward|ahead|further)\b",
    rf"{_CANNOT}(?: \w+){{0,3}}? (?:offer|extend|accept|hir|select|choos|employ|appoint|approv)(?:e|"
    r"ing)?(?: to)? (?:you|your application|your candidacy|an offer|the offer|a position|the position|it to you"
    r"|the role|\w+ the (?:role|position|job))",
    rf"(?:{_GO}|went|gone|moved|proceeded|decided to go|opted to go|chosen to go)(?: forward| ahead|"
    r" on)? with (?:another|other|a different|different|someone|somebody|a candidate|candidates|applicants|"
    r"an applicant|those|an(?:other)? internal)",
    r"(?:chosen|selected|decided on|opted for|hired|picked|appointed|offered (?:the|"
    rf"this) (?:\S+ )?{_ROLE} to|pursu(?:e|ing)|chose|select|choose|hire|appoint) (?:to \w+ )?(?:another|"
    r"a different|other|someone|somebody|an alternative|a more|more|a candidate)\b",
    rf"(?:another|a different|other) (?:\w+ )?{CANDIDATE} (?:was|were|is|better|"
    rf"had)(?: \w+)? (?:{_CHOSEN}|fits?|match)",
    r"\b(?:offered|goes|going|went|gone|go|given|awarded) to (?:another|an? (?:different|internal|external"
    r"|colleague|candidate"
    r"|applicant|person)|someone|somebody|the other)\b",
    r"\b(?:not|n't) (?:be )?(?:among|one of) (?:them|those|the (?:selected|successful|chosen|candidates"
    r"|finalists))\b",
    r"(?:not|n't) (?:\w+ ){0,2}?(?:tak|carry|pursu)(?:e|ing) (?:your (?:application|candidacy)|this"
    r"|things)(?: any)?(?: further| forward|\b)",
    r"\b(?:application|file|candidacy) (?:is |as |has been )?(?:now )?closed\b",
    r"(?:not|n't) work(?:ed)? out (?:this time|for)",
    r"\bfilled by (?:another|an? (?:internal|external|different)|someone)\b",
    r"\b(?:application|candidacy|profile|you)\b[^.!?\n]{0,40} not (?:be )?considered\b",
    r"\b(?:unable to|cannot|can't|not able to|not be able to|won't be able to) (?:\w+ )?(?:consider|pursue"
    r"|continue with|support)\b",
    r"\b(?:do|did|does) not meet (?:the|our|all|these) (?:\w+ ){0,2}(?:requirements|criteria|qualifications"
    r"|standards)\b",
    r"\b(?:go|going|went|gone|move|moving|moved|head|taken?) (?:in )?(?:a different|another) (?:direction|way"
    r"|route|path)\b",
    rf"\b(?:{_ROLE}|vacancy|opening) has (?:\w+ )?been filled\b",
    rf"\bin favou?r of (?:the other|another|an? (?:different|internal|external)|someone|somebody)\b|{_PANEL} said no\b",
    r"\bit(?:'s| is) a no\b|\b(?:have to|must|going to|decided to) (?:pass on|say no|turn you down|disappoint)\b",
    r"\bwill not be (?:joining|hiring|hired|considered further)\b",
    r"(?:not|n't) (?:make|made) (?:it (?:to|through|past|into)|the cut)\b",
    rf"(?:not|n't) (?:in a position to (?:\w+ )?you|have an? (?:\w+ )?{_ROLE} for you)",
    rf"(?:the|this|our) (?:\w+ ){{0,4}}{_ROLE}[^.!?\n]{{0,60}}? (?:has (?:already |now )?been|"
    r"is (?:already |now )|was(?: already)?) ?filled",
    rf"filled (?:the|this) (?:\w+ )?(?:{_ROLE}|vacancy)",
    r"\b(?:application|candidacy|candidature)\b[^.!?\n]{0,100}?\b(?:(?:has|have) been|was|is|"
    r"were) (?:\w+ )?(?:declined|rejected|denied|refused|turned down)\b",
    r"\b(?:you have been|you were|you are|you've been) (?:rejected|declined|refused|turned down|denied)\b",
    r"\b(?:reject|declin|refus|deny|turn down)(?:e|ed|ing)? your application\b",
    r"\b(?:decided|chosen|elected|opted) (?:not to|against)"
    r"(?: (?:offer|extend|accept|hir|select|choos|appoint)(?:e|ing)?(?: to)? you(?: (?:the|an?|this|for|as) \w+)?)?",
    r"(?:not|n't) (?:get|got|receive|land) (?:the|this) (?:job|role|position)\b",
    r"\bregret(?:fully|tably)?,?(?: to| that we| we)?(?: have to| must)? (?:to )?(?:inform|advise|"
    r"tell|say|let|notify|report|announce)\b",
    r"\b(?:with (?:deep |great |sincere |much |a heavy |heavy )?(?:regret|hearts?) that)\b",
    r"\bsorry to (?:inform|tell|say|let|advise|share|have to|report)\b",
    r"\b(?:not|n't) (?:be )?(?:the |an? )?(?:right |best |good |suitable |strongest )?(?:fit|"
    r"match) for (?:the|this|our)\b",
    r"\b(?:decision|outcome|status|result)\W{1,8}(?:application )?(?:rejected|declined|refused|denied"
    r"|unsuccessful|not \w+|rejection|refusal|no\b)",
)
ACCEPTANCES = any_of(
    r"\b(?:offer(?:ing)?|extend(?:ing)?)(?: to)? you (?:the|this|a|an|our|"
    rf"employment)(?:[^.!?\n]{{0,60}}? {_ROLE}|ment\b| (?:full|part)-time)",
    rf"\b(?:offer(?:ing)?|extend(?:ing)?) (?:\w+ ){{1,3}}the (?:\w+ )?{_ROLE}",
    r"\bextend(?:ing)? (?:to you )?(?:an?|the|this|our)(?: \w+)? (?:job |employment )?offer\b",
    r"\b(?:your|the|'s|s') application\b[^.!?\n]{0,100}?\b(?:has been|was|is) (?:very |"
    r"both )?(?:successful|accepted|approved)\b",
    r"\byou(?: have|'ve| were| are|'re)(?: officially| now| successfully)?(?: been)?(?: officially|"
    r" successfully)? (?:chosen|hired|accepted|appointed|selected|successful)\b",
    rf"\b{_GO}(?: forward| ahead)? with you (?:as|for)\b",
    rf"\bit(?:'s| is) a yes\b|{_PANEL} said yes\b",
    r"\byou(?:'ve| have)? made the cut\b|\byou(?:'ll| will) be (?:joining|starting)(?: \w+){0,4}? as\b",
    r"\b(?:like|love|want) to have you (?:on board|on (?:the|our) team|with us|join us) as\b",
    r"\byou(?: have|'ve)? got (?:the|this) (?:job|role|position|post)\b",
    r"\b(?:the|this) (?:[^\s.,;]+ ){0,3}(?:job|role|position|post)(?: (?:of|as) [^.!?\n]{1,50})? is yours\b",
    r"\b(?:want|like|love) you to (?:be|become|start as|join us as|take (?:the|this|on)) (?:our|the|a|an|this)\b",
    r"\byou(?:'re| are) (?:in|hired|on the team|our (?:pick|choice|new \w+))\b",
    r"\byour (?:appointment|new (?:role|position|job)) (?:as|to)\b",
    r"\bcongratulations on being (?:selected|chosen|hired|accepted) (?:for|as)\b",
    r"\byou (?:have|'ve) been offered (?:the|a|this)\b",
    r"\byou are (?:our|the) (?:new|successful|chosen|selected|top choice)\b",
    r"\b(?:have|has|'ve|would like to|to|we|decided to|proudly) (?:\w+ )?(?:accept(?:ed)?|hired?|"
    r"select(?:ed)?|appoint(?:ed)?|chosen?|choose) you (?:for|as|to)\b",
    r"\b(?:accept|accepted|approve|approved|accepting) your application\b",
    r"\b(?:welcome aboard|welcome(?: you)? to (?:the|our) (?:\w+ )?team)\b",
    r"\bhas been (?:officially |successfully )?(?:selected|chosen|hired|accepted|appointed)"
    r" (?:for|as|to (?:fill|join|take|serve)) ",
    r"\b(?:decision|outcome|status|result)\W{1,8}(?:application )?(?:accepted|approved|hired|selected"
    r"|successful|acceptance|offer extended|yes\b)",
)
OTHERS_CHOSEN = (
    rf"\b(?:(?:another|a different|other|an internal|an external) (?:\w+ )?{CANDIDATE}"
    r"|someone else|somebody else|others)"
    r" (?:has|have) been (?:selected|chosen|hired|accepted|appointed)\b"
)

FOREIGN_REFUSALS = any_of(
    r"lament(?:amos|o|ablemente)[^.!?\n]{0,60}?(?:informar|comunicar)",
    r"no (?:ha|has|haber) sido (?:seleccionad|elegid|aceptad)",
    r"(?:nous (?:avons le regret|regrettons|sommes au regret)|n'a(?:vez)? pas été (?:retenu|sélectionné|accepté))",
    r"(?:bedauern[^.!?\n]{0,30} (?:mit)?(?:zu)?teilen|leider[^.!?\n]* (?:mitteilen|"
    r"nicht|andere)|nicht (?:ausgewählt|berücksichtig))",
    r"(?:lamentamos informar|não foi (?:selecionad|aprovad|aceit))",
    r"(?:siamo spiacenti di|ci dispiace (?:informar|comunicar)|non è stat[oa] (?:selezionat|accettat))",
    r"(?:lamentablemente|desafortunadamente|infelizmente|malheureusement|purtroppo|leider|к сожалению|helaas"
    r"|tyvärr|niestety)",
    r"\bpas (?:\w+ ){0,4}suite favorable|pas (?:été |pu )?(?:retenir|retenu)",
    r"(?:otr[oa] candidat[oa]|autre candidat|altr[oa] candidat[oa]|outr[oa] candidat[oa])",
    "遗憾|抱歉|残念ながら|見送|不採用|유감|아쉽게",
)
FOREIGN_ACCEPTANCES = any_of(
    r"(?:ha|has) sido (?:seleccionad|elegid|aceptad)[oa]",
    r"(?:vous avez été|avez été) (?:retenue?|sélectionnée?|choisie?)",
    r"(?:wurden|sind) (?:\w+ ){0,6}?ausgewählt|ausgewählt (?:wurden|worden)",
    r"(?:você foi|foi) (?:selecionad|aprovad)[oa]",
    r"(?:è stat[oa]|sei stat[oa]) (?:selezionat|scelt)[oa]",
    r"(?:a été|est) (?:retenue|acceptée)|für sie entschieden|gehört ihnen|(?:stelle|position) \w* ?an(?:zu)?bieten",
    r"(?:felicitaciones|felicidades|enhorabuena|félicitations|glückwunsch|parabéns|congratulazioni|поздравляем"
    r"|gefeliciteerd)",
    r"(?:complace|encantad|alegra|plaisir|freuen uns|lieti|felici|prazer)[^.!?\n]{0,40} (?:ofrecer|offrir"
    r"|proposer|anbieten|an ?zu ?bieten|oferecer)",
    "您已被(?:录用|录取|选中)|恭喜|採用(?:が|することに|を)?決定|内定|おめでとう|축하",
)
