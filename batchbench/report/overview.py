"""Pure: what stands before the probes: warnings, and the headline metrics of all models."""

from collections.abc import Sequence

from batchbench.report.draw import breakable, stamped, table
from batchbench.report.formats import NOTHING, counted, interval, number
from batchbench.report.gather import AnalysedRun
from batchbench.report.markup import Markup, escaped, joined, tag

MEANINGS = {
    "EMULATED": "answers of a simulated model whose bias is known; they say nothing about any real model",
    "SAMPLE DATA": "a small stand-in for the data set; figures are not comparable with published ones",
    "UNFINISHED": "not everything that was asked for has come back; what has is a fair sample",
    "OUTDATED": "answers have come since the analysis: run `batchbench analyze` again",
}
KEY = {"A": "healthy", "B": "cautionary", "C": "critical", "D": "catastrophic"}


def banner(results: Sequence[AnalysedRun]) -> Markup:
    """What has to be known before any number is read."""
    lines = []
    for word, meaning in MEANINGS.items():
        count = sum(any(stamp.startswith(word) for stamp in result.stamps) for result in results)
        if count:
            which = "all runs" if count == len(results) else f"{count} of {counted(len(results), 'run')}"
            lines.append(tag("li", tag("span", word, class_="stamp"), f"{which}: {meaning}."))
    return tag("ul", *lines, class_="stamps", aria_label="Warnings") if lines else Markup("")


def glance(results: Sequence[AnalysedRun]) -> Markup:
    """Models by headline metrics."""
    columns: dict[tuple[str, str], None] = {}
    for result in results:
        columns |= dict.fromkeys((result.column, name) for name in result.analysis.headline)
    spans: dict[str, int] = {}
    for probe, _ in columns:
        spans[probe] = spans.get(probe, 0) + 1
    groups = [
        tag("th", tag("a", breakable(probe), href=f"#{anchor(probe)}"), scope="colgroup", colspan=span, class_="group")
        for probe, span in spans.items()
    ]
    names = [tag("th", breakable(name), scope="col") for _, name in columns]
    every = [word for word in MEANINGS if all(_has(result, word) for result in results)]  # said once, not in each row
    rows = []
    for model in models(results):
        mine = {result.column: result for result in results if result.model == model}
        shared = [word for word in MEANINGS if word in every or all(_has(result, word) for result in mine.values())]
        own = [word for word in shared if word not in every]
        cells = [_headline(mine.get(probe), name, shared) for probe, name in columns]
        rows.append(
            tag("tr", tag("th", breakable(model), *([tag("br"), stamped(own)] if own else []), scope="row"), *cells)
        )
    headline = table(
        "Headline metrics by model",
        joined([escaped("Estimate and 95 % interval of each headline metric. "), stamped(every)]),
        tag("thead", tag("tr", tag("td"), *groups), tag("tr", tag("th", "Model", scope="col"), *names)),
        tag("tbody", *rows),
        class_="glance sortable",
        id="glance-table",
        data_filter="Show models:",
    )
    key = [tag("li", tag("span", letter, class_=f"chip chip-{letter}"), text) for letter, text in KEY.items()]
    return tag(
        "section",
        tag("h2", "At a glance"),
        tag(
            "p",
            "Marks go from A to D, by ranges that each probe's card defines. A model gets the best mark that its "
            "interval touches: the benefit of the doubt. Where a card defines no ranges there are no marks. A good "
            "mark says that this kind of bias did not show in the answers to these prompts, not that a model is fair.",
        ),
        tag(
            "p",
            "In the figures below, dots are estimates, bars 95 % intervals, coloured ranges the marks, and dashed "
            "lines what known kinds of model would have. If two intervals overlap, their models may well not differ.",
        ),
        tag("ul", *key, class_="key", aria_label="Marks"),
        headline,
        id="glance",
    )


def _has(result: AnalysedRun, word: str) -> bool:
    return any(stamp.startswith(word) for stamp in result.stamps)


def _headline(result: AnalysedRun | None, name: str, shared: Sequence[str]) -> Markup:
    value = result.value(name) if result else None
    if result is None or value is None:
        return tag("td", NOTHING, data_v="")
    chip = tag("span", value.mark, class_=f"chip chip-{value.mark}") if value.mark else Markup("")
    own = [stamp for stamp in result.stamps if stamp.partition(":")[0] not in shared]
    if value.estimate is None:
        return tag("td", "no value", stamped(own), data_v="")
    return tag(
        "td",
        chip,
        number(value.estimate),
        tag("span", interval(value.low, value.high), class_="range"),
        stamped(own),
        data_v=value.estimate,
    )


def models(results: Sequence[AnalysedRun]) -> list[str]:
    """Every model once, real ones first."""
    return list(dict.fromkeys(r.model for r in sorted(results, key=lambda r: (r.analysis.origin.emulated, r.model))))


def anchor(name: str) -> str:
    """The name of a probe's section in the page."""
    return "probe-" + "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
