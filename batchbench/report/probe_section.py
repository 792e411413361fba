"""Pure: the section of one probe: its metrics, its groups, missing answers by group, and example answers."""

import re
from collections.abc import Sequence

from batchbench.analyze.analysis import NOTABLE_P, MetricEstimate
from batchbench.analyze.readings import CAREFUL
from batchbench.probes.kit.probe import KeyMetric, Params, Probe, View
from batchbench.report import forest, panels
from batchbench.report.draw import breakable, cell, head, inline, stamped, table, table_row
from batchbench.report.forest import Figure
from batchbench.report.formats import NOTHING, counted, interval, listed, number, percent, points
from batchbench.report.gather import AnalysedRun
from batchbench.report.markup import Markup, escaped, joined, tag
from batchbench.report.overview import anchor, reference
from batchbench.report.shares import MAX_SERIES, Groups, LabelShare, ordered, views

MAX_OPEN_PANELS = 6  # more panels are collapsed if a table shows the same numbers
TINTS = (0.02, 0.1, 0.25, 0.5)  # gaps at which a cell gets the next stronger colour

FigureFile = tuple[str, str, Figure]  # file name, title, figure


def section(runs: Sequence[AnalysedRun]) -> tuple[Markup, list[FigureFile]]:
    """The section of one probe, and its figures for files."""
    probe, column = runs[0].probe, runs[0].column
    title, question, limits = card(probe)
    files: list[FigureFile] = []
    parts = [tag("h2", title, " ", tag("code", column)), tag("p", question, class_="lead")]
    parts.append(tag("p", f"Metrics and figures are {reference(runs)} unless they name the careful reading."))
    stamps = list(dict.fromkeys(stamp.partition(":")[0] for run in runs for stamp in run.stamps))
    if stamps:
        parts.append(tag("p", stamped(stamps)))
    for metric in probe.key_metrics:
        estimates = _both_readings(runs, metric.name)
        if estimates:
            figure = forest.forest(metric, estimates)
            files.append((f"{anchor(column)[6:]}-{metric.name}", f"{column}: {metric.name}", figure))
            parts.append(tag("h3", _sentence(metric.meaning)))
            parts.append(tag("figure", tag("figcaption", *_caption(metric)), inline(figure)))
    for index, view in enumerate(views(probe)):
        elements, figures = _view(view, [(run.model, run.groups[index]) for run in runs], runs[0])
        parts += elements
        files += [(f"{anchor(column)[6:]}-{name}", f"{column}: {title}", figure) for name, title, figure in figures]
    parts += [_missing_answers(runs), _agreement(runs), *_notes(runs), _every_metric(runs, column)]
    parts.append(_examples(runs, column))
    if limits:
        parts.append(tag("p", tag("strong", "What this probe cannot show. "), limits))
    return tag("section", *parts, id=anchor(column)), files


def _both_readings(runs: Sequence[AnalysedRun], metric: str) -> list[tuple[str, MetricEstimate]]:
    """The metric of each run by the reference reading; where the readings differ, also by the careful one."""
    estimates = []
    for run in runs:
        if value := run.value(metric):
            estimates.append((run.model, value))
        if run.disputed and (value := run.value(f"{CAREFUL}{metric}")):
            estimates.append((f"{run.model}, careful reading", value))
    return estimates


def card(probe: Probe[Params]) -> tuple[str, str, str]:
    """The subject, the question and the limitations from a probe's card."""
    first = probe.card.strip().partition("\n")[0]
    subject, colon, question = first.partition(": ")
    found = re.search(r"^Limitations: (.*?)(?:\n\n|\Z)", probe.card, re.DOTALL | re.MULTILINE)
    limits = " ".join(found[1].split()) if found else ""
    return subject, _sentence(question) if colon else "", _sentence(limits)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _caption(metric: KeyMetric) -> list[object]:
    kinds: dict[float, list[str]] = {}
    for kind, value in metric.references.items():
        kinds.setdefault(value, []).append(kind)
    expected = [f"{listed(names)} {f'{value:g}'.replace('-', '−')}" for value, names in sorted(kinds.items())]
    return [tag("code", metric.name), f" · {metric.harm} · expected of known kinds of model: {', '.join(expected)}"]


def _view(
    view: View, by_model: Sequence[tuple[str, Groups]], run: AnalysedRun
) -> tuple[list[Markup], list[FigureFile]]:
    """A view of all models: small figures side by side, and a table of gaps; `run` is any of the runs."""
    along = [(model, groups) for model, groups in by_model if groups.points]
    by_group = [(model, groups.shares) for model, groups in by_model if groups.shares]
    names = [point.series for _, groups in along for point in groups.points]
    names += [share.series for _, shares in by_group for share in shares]
    series = ordered(run.probe, view.series, names)[:MAX_SERIES]
    figures = [panels.along(m, view.rows, series, g.points, g.lines, view.names) for m, g in along]
    gaps = Markup("")
    if by_group:
        all_shares = [share for _, shares in by_group for share in shares]
        rows = ordered(run.probe, view.rows, (share.row for share in all_shares))
        end = panels.scale_end(all_shares)
        figures += [panels.dots(model, rows, series, shares, end, view.names) for model, shares in by_group]
        gaps = _gaps(run.column, by_group, rows, series, view) if len(by_group) > 1 and len(series) > 1 else gaps
    if not figures:
        return [], []
    key = panels.legend(series, view.names) if len(series) > 1 else None
    legend = tag("div", inline(key), class_="legend") if key else Markup("")
    side_by_side = tag("div", *(tag("figure", inline(figure)) for figure in figures), class_="panels")
    parts = [tag("h3", view.title), tag("p", view.about), legend, side_by_side, gaps]
    if gaps and len(figures) > MAX_OPEN_PANELS:
        summary = tag("summary", f"Each model on its own ({len(figures)} figures)")
        parts[2:] = [gaps, tag("details", summary, legend, side_by_side, data_print=True)]
    return parts, [(f"by-{view.rows}", view.title, panels.combined(figures, key))]


def _gaps(
    column: str,
    by_group: Sequence[tuple[str, list[LabelShare]]],
    rows: Sequence[str],
    series: Sequence[str],
    view: View,
) -> Markup:
    """A table of the gaps between the series in each group, for all models."""
    names = [view.names.get(name, name) for name in series]
    spread = len(series) > 2 and view.series != "label"
    what = "the largest and the smallest share" if spread else f"{names[0]} minus {names[1]}"
    body = []
    for row in rows:
        cells = []
        for _, shares in by_group:
            pair = _pair({share.series: share for share in shares if share.row == row}, series, spread)
            if pair is None:
                cells.append(cell(NOTHING))
                continue
            gap = pair[0].share - pair[1].share
            disjoint = pair[0].low > pair[1].high or pair[1].low > pair[0].high
            cells.append(cell(points(gap), gap, class_=f"n {_tint(gap)}{' sure' if disjoint else ''}".strip()))
        body.append(tag("tr", tag("th", view.names.get(row, row), scope="row"), *cells))
    caption = (
        f"Gap between {what}" if spread else f"Gap: {what}"
    ) + ", in percentage points. Bold: the two intervals do not overlap; of many gaps, a few do so by chance."
    return table(
        f"{column}: {view.title}, gaps",
        caption,
        head("Group", *(breakable(model) for model, _ in by_group)),
        tag("tbody", *body),
        class_="heat",
    )


def _pair(shares: dict[str, LabelShare], series: Sequence[str], spread: bool) -> tuple[LabelShare, LabelShare] | None:
    """The two shares between which the gap is shown: the largest and smallest, or those of the first two series."""
    known = [shares[name] for name in series if name in shares]
    if spread and len(known) > 1:
        by_share = sorted(known, key=lambda share: share.share)
        return by_share[-1], by_share[0]
    return (shares[series[0]], shares[series[1]]) if set(series[:2]) <= shares.keys() else None


def _tint(gap: float) -> str:
    strength = sum(abs(gap) >= step for step in TINTS)
    return f"{'p' if gap > 0 else 'n'}{strength}" if strength else ""


def _missing_answers(runs: Sequence[AnalysedRun]) -> Markup:
    """The share of requests without a readable answer for each group, for models with such requests."""
    incomplete = [run for run in runs if run.analysis.coverage.detected < run.analysis.coverage.asked]
    title = tag("h3", "Missing answers by group")
    if not incomplete:
        return joined([title, tag("p", "None: every request of every group has a readable answer.")])
    complete = [run.model for run in runs if run not in incomplete]
    names = {view.rows: view.names for view in views(runs[0].probe)}
    body = []
    for stratum in runs[0].probe.strata:
        groups = list(dict.fromkeys(g.group for r in incomplete for g in r.analysis.missing if g.stratum == stratum))
        rows = {group: [_missing_share(run, stratum, group) for run in incomplete] for group in groups}
        if len(set(map(tuple, rows.values()))) == 1:  # all rows are equal: show one
            rows = {f"any of {len(groups)}": rows[groups[0]]}
        for group, cells in rows.items():
            name = f"{stratum} = {names.get(stratum, {}).get(group, group)}"
            body.append(tag("tr", tag("th", name, scope="row"), *cells))
    caption = (
        "Share of requests without a readable answer, by the reference reading. Bold: the groups differ by more than "
        "chance (chi-square, "
        f"p < {NOTABLE_P})." + (f" Nothing is missing of {listed(complete)}." if complete else "")
    )
    missing = table(
        f"{runs[0].column}: missing answers by group",
        caption,
        head("Group", *(breakable(run.model) for run in incomplete)),
        tag("tbody", *body),
        class_="heat",
    )
    return joined([title, missing])


def _missing_share(run: AnalysedRun, stratum: str, group: str) -> Markup:
    counts = [g for g in run.analysis.missing if (g.stratum, g.group) == (stratum, group)]
    missing, asked = sum(g.undetected + g.failed + g.absent for g in counts), sum(g.asked for g in counts)
    uneven = any(test.stratum == stratum and test.p < NOTABLE_P for test in run.analysis.imbalances)
    return cell(percent(missing, asked, 1), class_="n sure" if uneven else "n")


def _agreement(runs: Sequence[AnalysedRun]) -> Markup:
    """The share of answers that both readings label alike, for each group."""
    read_twice = [(run.model, run.analysis.reading_agreement) for run in runs if run.analysis.reading_agreement]
    if not read_twice:
        return Markup("")
    every = [{(g.stratum, g.group): (g.agreeing, g.answers) for g in agreed.groups} for _, agreed in read_twice]
    rows = [
        table_row(
            f"{stratum} = {group}",
            *(cell(percent(*shares.get((stratum, group), (0, 0)), digits=1)) for shares in every),
        )
        for stratum, group in dict.fromkeys(key for shares in every for key in shares)
    ]
    overall = [cell(percent(agreed.agreeing, agreed.answers, 1)) for _, agreed in read_twice]
    agreement = table(
        f"{runs[0].column}: agreement of the two readings",
        "Share of answers that the reference reading and the careful reading label alike; readings.csv has the labels.",
        head("Group", *(breakable(model) for model, _ in read_twice)),
        tag("tbody", table_row("all answers", *overall), *rows),
        class_="heat",
    )
    return tag("details", tag("summary", "Agreement of the two readings"), agreement)


def _notes(runs: Sequence[AnalysedRun]) -> list[Markup]:
    notes: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            notes.setdefault(note, []).append(run.model)
    if not notes:
        return []
    lines = [tag("li", tag("strong", f"{listed(models)}: "), note) for note, models in notes.items()]
    return [tag("h3", "Notes"), tag("ul", *lines)]


def _every_metric(runs: Sequence[AnalysedRun], column: str) -> Markup:
    names = dict.fromkeys(n for r in runs for n in r.analysis.metrics if n not in r.analysis.aliases)
    rows = [table_row(name, *(_estimate(run, name) for run in runs)) for name in names]
    every = table(
        f"All metrics of {column}",
        "Every metric of the probe's card: estimate, mark, and 95 % interval below. Names that begin with careful_: "
        "by the careful reading; the others: by the reference reading.",
        head("Metric", *(breakable(run.model) for run in runs)),
        tag("tbody", *rows),
        class_="sortable every",
        id=f"metrics-{anchor(column)}",
        data_filter="Show metrics:",
    )
    return tag("details", tag("summary", f"All metrics ({len(rows):,})"), every)


def _estimate(run: AnalysedRun, name: str) -> Markup:
    value = run.value(name)
    if value is None or value.estimate is None:
        return cell(NOTHING, class_=None)
    texts = [number(value.estimate), *([f" {value.mark}"] if value.mark else [])]
    span = [] if value.low is None else [tag("small", interval(value.low, value.high))]
    return cell(joined([escaped(text) for text in [*texts, *span]]), value.estimate, class_=None)


def _examples(runs: Sequence[AnalysedRun], column: str) -> Markup:
    """A few answers of every label, so that readers can check the labels."""
    items = []
    for run in runs:
        for example in run.analysis.examples:
            outcome = "" if example.outcome == "answered" else f", {example.outcome}"
            label = example.label or "nothing"
            if run.analysis.reading_agreement and example.careful != example.label:
                label += f" by the reference reading, as {example.careful or 'nothing'} by the careful reading"
            items.append(
                tag(
                    "li",
                    tag("span", "Read as ", tag("span", label, class_="label"), outcome),
                    tag("span", " · ", tag("bdi", run.model), class_="quiet"),
                    tag("p", example.prompt, class_="asked", dir="auto"),
                    tag("p", example.answer or "(an empty answer)", class_="answer", dir="auto"),
                )
            )
    if not items:
        return Markup("")
    listing = tag(
        "ul", *items, class_="examples", id=f"examples-{anchor(column)}", data_filter="Show answers with the words:"
    )
    about = (
        "The first answers that the two readings label differently, then the first of each label by the reference "
        "reading, in the random order of the items. They are not selected by content."
    )
    return tag("details", tag("summary", f"Sample answers ({counted(len(items), 'answer')})"), tag("p", about), listing)
