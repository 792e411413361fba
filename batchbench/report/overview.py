"""Pure: the parts before the probes: warnings, and the headline metrics of all models."""

from collections.abc import Sequence

from batchbench.report.draw import breakable, stamped, table
from batchbench.report.formats import NOTHING, counted, interval, listed, number
from batchbench.report.gather import AnalysedRun
from batchbench.report.markup import Markup, escaped, joined, tag

MEANINGS = {
    "EMULATED": "answers of a simulated model with a known bias; they say nothing about any real model",
    "SAMPLE DATA": "a small stand-in for the data set; figures are not comparable with published ones",
    "UNFINISHED": "some answers are missing; the received answers are a fair sample",
    "OUTDATED": "new answers were received after the analysis: run `batchbench analyze` again",
}
KEY = {"A": "healthy", "B": "cautionary", "C": "critical", "D": "catastrophic"}


def banner(runs: Sequence[AnalysedRun]) -> Markup:
    """The warnings at the top of the page, with their meaning."""
    lines = []
    for word, meaning in MEANINGS.items():
        if count := sum(_has(run, word) for run in runs):
            which = "all runs" if count == len(runs) else f"{count} of {counted(len(runs), 'run')}"
            lines.append(tag("li", tag("span", word, class_="stamp"), f"{which}: {meaning}."))
    return tag("ul", *lines, class_="stamps", aria_label="Warnings") if lines else Markup("")


def glance(runs: Sequence[AnalysedRun]) -> Markup:
    """The table of models by headline metrics."""
    columns: dict[tuple[str, str], None] = {}
    for run in runs:
        columns |= dict.fromkeys((run.column, name) for name in run.analysis.headline)
    spans: dict[str, int] = {}
    for probe, _ in columns:
        spans[probe] = spans.get(probe, 0) + 1
    groups = [
        tag("th", tag("a", breakable(probe), href=f"#{anchor(probe)}"), scope="colgroup", colspan=span, class_="group")
        for probe, span in spans.items()
    ]
    names = [tag("th", breakable(name), scope="col") for _, name in columns]
    every = [word for word in MEANINGS if all(_has(run, word) for run in runs)]  # shown once, not in each row
    rows = []
    for model in models(runs):
        by_probe = {run.column: run for run in runs if run.model == model}
        shared = [word for word in MEANINGS if word in every or all(_has(run, word) for run in by_probe.values())]
        own = [word for word in shared if word not in every]
        cells = [_headline(by_probe.get(probe), name, shared) for probe, name in columns]
        name = tag("th", breakable(model), *([tag("br"), stamped(own)] if own else []), scope="row")
        rows.append(tag("tr", name, *cells))
    headline = table(
        "Headline metrics by model",
        joined([escaped(f"Estimate and 95 % interval of each headline metric, {reference(runs)}. "), stamped(every)]),
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
            "interval overlaps. If a card defines no ranges, there are no marks. Answers are read twice: by the "
            "reference reading, which equals published code, and by a careful reading, which leaves out reasoning and "
            "reads nothing in doubt. Where their marks differ, both are shown: reference / careful. A reading that "
            "can read too few of the answers gives no mark (–); the notes of the probe say why. A good "
            "mark says that this kind of bias did not show in the answers to these prompts, not that a model is fair.",
        ),
        tag(
            "p",
            "In the figures below, dots are estimates, bars 95 % intervals, coloured ranges the marks, and dashed "
            "lines the values of known kinds of models. If two intervals overlap, the models possibly do not differ.",
        ),
        tag("ul", *key, class_="key", aria_label="Marks"),
        headline,
        id="glance",
    )


def reference(runs: Sequence[AnalysedRun]) -> str:
    """The reference readings of these runs, for a caption."""
    names = dict.fromkeys(run.analysis.readings[0].name for run in runs if run.analysis.readings)
    return f"by the reference reading ({listed(list(names))})" if names else "by the reference reading"


def _has(run: AnalysedRun, word: str) -> bool:
    return any(stamp.startswith(word) for stamp in run.stamps)


def _headline(run: AnalysedRun | None, name: str, shared: Sequence[str]) -> Markup:
    value = run.value(name) if run else None
    if run is None or value is None:
        return tag("td", NOTHING, data_v="")
    letters = value.mark.split(" / ") if value.mark else []
    chips = [tag("span", mark, class_="no-mark" if mark == NOTHING else f"chip chip-{mark}") for mark in letters]
    chip = joined(chips, " / ")
    own = [stamp for stamp in run.stamps if stamp.partition(":")[0] not in shared]
    if value.estimate is None:
        return tag("td", "no value", stamped(own), data_v="")
    limits = tag("span", interval(value.low, value.high), class_="range")
    return tag("td", chip, number(value.estimate), limits, stamped(own), data_v=value.estimate)


def models(runs: Sequence[AnalysedRun]) -> list[str]:
    """The names of all models, real ones before emulated ones."""
    return list(dict.fromkeys(r.model for r in sorted(runs, key=lambda r: (r.analysis.origin.emulated, r.model))))


def anchor(name: str) -> str:
    """The id of a probe's section in the page."""
    return "probe-" + "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
