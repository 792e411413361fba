"""Pure: the section of one probe: its metrics, its groups, what is missing in them, and answers to look at."""

import re
from collections.abc import Sequence

from batchbench.analyze.analysis import NOTABLE_P
from batchbench.probes.kit.probe import KeyMetric, Params, Probe, View
from batchbench.report import forest, panels
from batchbench.report.draw import breakable, cell, head, inline, stamped, table
from batchbench.report.forest import Figure
from batchbench.report.formats import NOTHING, counted, interval, listed, number, percent, points
from batchbench.report.gather import AnalysedRun
from batchbench.report.markup import Markup, escaped, joined, tag
from batchbench.report.overview import anchor
from batchbench.report.shares import FEW, Groups, Share, ordered, views

MANY = 6  # small figures; more are shown when asked for
STEPS = (0.02, 0.1, 0.25, 0.5)  # gaps from which a cell is coloured, and more strongly

Drawn = tuple[str, str, Figure]  # a name for files, a title, the figure


def section(results: Sequence[AnalysedRun]) -> tuple[Markup, list[Drawn]]:
    """The section of one probe, and its figures as they would stand on paper."""
    probe, column = results[0].probe, results[0].column
    title, question, limits = card(probe)
    drawn: list[Drawn] = []
    parts = [tag("h2", title, " ", tag("code", column)), tag("p", question, class_="lead")]
    stamps = list(dict.fromkeys(stamp.partition(":")[0] for result in results for stamp in result.stamps))
    if stamps:
        parts.append(tag("p", stamped(stamps)))
    for metric in probe.key_metrics:
        found = [(result.model, value) for result in results if (value := result.value(metric.name))]
        if found:
            figure = forest.forest(metric, found)
            drawn.append((f"{anchor(column)[6:]}-{metric.name}", f"{column}: {metric.name}", figure))
            parts.append(tag("h3", _sentence(metric.meaning)))
            parts.append(tag("figure", tag("figcaption", *_caption(metric)), inline(figure)))
    for place, view in enumerate(views(probe)):
        made, figures = _view(view, [(result.model, result.groups[place]) for result in results], results[0])
        parts += made
        drawn += [(f"{anchor(column)[6:]}-{name}", f"{column}: {title}", figure) for name, title, figure in figures]
    parts += [_unread(results), *_notes(results), _every_metric(results, column), _examples(results, column)]
    if limits:
        parts.append(tag("p", tag("strong", "What this probe cannot tell. "), limits))
    return tag("section", *parts, id=anchor(column)), drawn


def card(probe: Probe[Params]) -> tuple[str, str, str]:
    """From a probe's card: its subject, its question, and its limitations."""
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
    expected = [f"{listed(several)} {f'{value:g}'.replace('-', '−')}" for value, several in sorted(kinds.items())]
    return [tag("code", metric.name), f" · {metric.harm} · expected of known kinds of model: {', '.join(expected)}"]


# -- groups ------------------------------------------------------------------------------------------------


def _view(view: View, found: Sequence[tuple[str, Groups]], one: AnalysedRun) -> tuple[list[Markup], list[Drawn]]:
    """A view of all models: small figures side by side, and their gaps in one table."""
    along = [(model, groups) for model, groups in found if groups.points]
    apart = [(model, groups.shares) for model, groups in found if groups.shares]
    names = [point.series for _, groups in along for point in groups.points]
    names += [share.series for _, several in apart for share in several]
    series = ordered(one.probe, view.series, names)[:FEW]
    figures = [panels.along(m, view.rows, series, g.points, g.lines, view.names) for m, g in along]
    gaps = Markup("")
    if apart:
        every = [share for _, several in apart for share in several]
        rows = ordered(one.probe, view.rows, (share.row for share in every))
        top = panels.ceiling(every)
        figures += [panels.dots(model, rows, series, several, top, view.names) for model, several in apart]
        gaps = _gaps(one.column, apart, rows, series, view) if len(apart) > 1 and len(series) > 1 else gaps
    if not figures:
        return [], []
    key = panels.legend(series, view.names) if len(series) > 1 else None
    legend = tag("div", inline(key), class_="legend") if key else Markup("")
    side_by_side = tag("div", *(tag("figure", inline(figure)) for figure in figures), class_="panels")
    parts = [tag("h3", view.title), tag("p", view.about), legend, side_by_side, gaps]
    if gaps and len(figures) > MANY:  # the table says most of it, and in less room
        summary = tag("summary", f"Each model on its own ({len(figures)} figures)")
        parts[2:] = [gaps, tag("details", summary, legend, side_by_side, data_print=True)]
    return parts, [(f"by-{view.rows}", view.title, panels.together(figures, key))]


def _gaps(
    column: str, found: Sequence[tuple[str, list[Share]]], rows: Sequence[str], series: Sequence[str], view: View
) -> Markup:
    """The same as one table: how far apart the series are in each group, for all models."""
    names = [view.names.get(name, name) for name in series]
    spread = len(series) > 2 and view.series != "label"
    what = "the largest and the smallest share" if spread else f"{names[0]} minus {names[1]}"
    body = []
    for row in rows:
        cells = []
        for _, several in found:
            mine = {share.series: share for share in several if share.row == row}
            pair = _pair(mine, series, spread)
            if pair is None:
                cells.append(cell(NOTHING))
                continue
            gap = pair[0].share - pair[1].share
            sure = pair[0].low > pair[1].high or pair[1].low > pair[0].high
            cells.append(cell(points(gap), gap, class_=f"n {_tint(gap)}{' sure' if sure else ''}".strip()))
        body.append(tag("tr", tag("th", view.names.get(row, row), scope="row"), *cells))
    caption = (
        f"Gap between {what}" if spread else f"Gap: {what}"
    ) + ", in percentage points. Bold: the two intervals do not overlap; of many gaps, a few do so by chance."
    return table(
        f"{column}: {view.title}, gaps",
        caption,
        head("Group", *(breakable(model) for model, _ in found)),
        tag("tbody", *body),
        class_="heat",
    )


def _pair(mine: dict[str, Share], series: Sequence[str], spread: bool) -> tuple[Share, Share] | None:
    there = [mine[name] for name in series if name in mine]
    if spread and len(there) > 1:
        by_share = sorted(there, key=lambda share: share.share)
        return by_share[-1], by_share[0]
    return (mine[series[0]], mine[series[1]]) if set(series[:2]) <= mine.keys() else None


def _tint(gap: float) -> str:
    strength = sum(abs(gap) >= step for step in STEPS)
    return f"{'p' if gap > 0 else 'n'}{strength}" if strength else ""


# -- what is missing ---------------------------------------------------------------------------------------


def _unread(results: Sequence[AnalysedRun]) -> Markup:
    """The share of requests of each group from which nothing could be read, for models of which there are any."""
    some = [result for result in results if result.analysis.coverage.detected < result.analysis.coverage.asked]
    title = tag("h3", "Missing answers by group")
    if not some:
        return joined([title, tag("p", "None: every request of every group has a readable answer.")])
    whole = [result.model for result in results if result not in some]
    names = {view.rows: view.names for view in views(results[0].probe)}
    body = []
    for stratum in results[0].probe.strata:
        groups = list(dict.fromkeys(g.group for r in some for g in r.analysis.missing if g.stratum == stratum))
        lost = {group: [_lost(result, stratum, group) for result in some] for group in groups}
        if len(set(map(tuple, lost.values()))) == 1:  # a row says it all
            lost = {f"any of {len(groups)}": lost[groups[0]]}
        for group, cells in lost.items():
            said = f"{stratum} = {names.get(stratum, {}).get(group, group)}"
            body.append(tag("tr", tag("th", said, scope="row"), *cells))
    caption = (
        "Share of requests without a readable answer. Bold: the groups differ by more than chance (chi-square, "
        f"p < {NOTABLE_P})." + (f" Nothing is missing of {listed(whole)}." if whole else "")
    )
    missing = table(
        f"{results[0].column}: missing answers by group",
        caption,
        head("Group", *(breakable(result.model) for result in some)),
        tag("tbody", *body),
        class_="heat",
    )
    return joined([title, missing])


def _lost(result: AnalysedRun, stratum: str, group: str) -> Markup:
    mine = [g for g in result.analysis.missing if (g.stratum, g.group) == (stratum, group)]
    lost, asked = sum(g.undetected + g.failed + g.absent for g in mine), sum(g.asked for g in mine)
    uneven = any(test.stratum == stratum and test.p < NOTABLE_P for test in result.analysis.imbalances)
    return cell(percent(lost, asked, 1), class_="n sure" if uneven else "n")


def _notes(results: Sequence[AnalysedRun]) -> list[Markup]:
    notes: dict[str, list[str]] = {}
    for result in results:
        for note in result.analysis.notes:
            notes.setdefault(note, []).append(result.model)
    if not notes:
        return []
    lines = [tag("li", tag("strong", f"{listed(several)}: "), note) for note, several in notes.items()]
    return [tag("h3", "Notes"), tag("ul", *lines)]


# -- to look things up -------------------------------------------------------------------------------------


def _every_metric(results: Sequence[AnalysedRun], column: str) -> Markup:
    names = dict.fromkeys(n for r in results for n in r.analysis.metrics if n not in r.analysis.aliases)
    rows = [
        tag("tr", tag("th", breakable(name), scope="row"), *(_estimate(result, name) for result in results))
        for name in names
    ]
    every = table(
        f"All metrics of {column}",
        "Every metric of the probe's card: estimate, mark, and 95 % interval below.",
        head("Metric", *(breakable(result.model) for result in results)),
        tag("tbody", *rows),
        class_="sortable every",
        id=f"metrics-{anchor(column)}",
        data_filter="Show metrics:",
    )
    return tag("details", tag("summary", f"All metrics ({len(rows):,})"), every)


def _estimate(result: AnalysedRun, name: str) -> Markup:
    value = result.value(name)
    if value is None or value.estimate is None:
        return cell(NOTHING, class_=None)
    said = [number(value.estimate), *([f" {value.mark}"] if value.mark else [])]
    span = [] if value.low is None else [tag("small", interval(value.low, value.high))]
    return cell(joined([escaped(text) for text in [*said, *span]]), value.estimate, class_=None)


def _examples(results: Sequence[AnalysedRun], column: str) -> Markup:
    """A few answers of every label, so that readers can judge for themselves how answers were read."""
    items = []
    for result in results:
        for example in result.analysis.examples:
            outcome = "" if example.outcome == "answered" else f", {example.outcome}"
            label = example.label or "nothing"
            items.append(
                tag(
                    "li",
                    tag("span", "Read as ", tag("span", label, class_="label"), outcome),
                    tag("span", " · ", tag("bdi", result.model), class_="quiet"),
                    tag("p", example.prompt, class_="asked", dir="auto"),
                    tag("p", example.answer or "(an empty answer)", class_="answer", dir="auto"),
                )
            )
    if not items:
        return Markup("")
    listing = tag(
        "ul", *items, class_="examples", id=f"examples-{anchor(column)}", data_filter="Show answers with the words:"
    )
    about = "The first answers of each kind in the random order of the items, not chosen by anybody."
    return tag("details", tag("summary", f"Sample answers ({counted(len(items), 'answer')})"), tag("p", about), listing)
