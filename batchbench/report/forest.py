"""Pure: a forest plot of one metric: the models' estimates and intervals over the ranges of the marks.

Widths are per cent, so that the figure fills the screen while its text keeps its size.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec

from batchbench.analyze.analysis import MetricEstimate
from batchbench.probes.kit.probe import KeyMetric
from batchbench.report import axis
from batchbench.report.axis import Axis
from batchbench.report.formats import interval, listed, number
from batchbench.report.markup import Markup, joined, tag
from batchbench.stats.marks import MARKS

HEAD, TEXT, STRIP, LINE = 10, 30, 18, 17  # pixels: height of the mark letters, a name, its bar, an extra text line
LONG = 34  # letters: after a longer model name, the estimate does not fit on the same line on a phone


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """An SVG drawing, its height in pixels and its text for screen readers; a width of None fills the page."""

    inside: Markup
    height: float
    label: str
    width: float | None = None


def forest(metric: KeyMetric, estimates: Sequence[tuple[str, MetricEstimate]]) -> Figure:
    """The figure of one metric, for (model, estimate) pairs; models are sorted by their estimates."""
    known = sorted(((name, value) for name, value in estimates if value.estimate is not None), key=_estimate)
    unknown = [(name, value) for name, value in estimates if value.estimate is None]
    scale = _axis(metric, [value for _, value in known])
    text = TEXT + (LINE if max((len(name) for name, _ in estimates), default=0) > LONG else 0)
    bottom = HEAD + len(estimates) * (text + STRIP)
    rows = [
        _row(scale, name, value, HEAD + index * (text + STRIP), text)
        for index, (name, value) in enumerate([*known, *unknown])
    ]
    references, lines = _references(scale, metric, bottom)
    elements = [*_bands(scale, metric, bottom), *references, *rows, *_letters(scale, metric), *_ticks(scale, bottom)]
    label = _description(metric, [*known, *unknown])
    return Figure(inside=joined(elements), height=bottom + 20 + lines * LINE, label=label)


def _estimate(row: tuple[str, MetricEstimate]) -> float:
    return row[1].estimate or 0.0


def _axis(metric: KeyMetric, known: Sequence[MetricEstimate]) -> Axis:
    """An axis with the data, an unbiased model and the ranges A to C; other references may be outside of it."""
    values = [value for e in known for value in (e.estimate, e.low, e.high) if value is not None]
    values += [value for kind, value in metric.references.items() if kind in ("unbiased", "random")]
    edges = [edge for ranges in metric.marks for pair in ranges for edge in pair]
    limits = (min(edges), max(edges)) if edges else (-math.inf, math.inf)
    # Of a range that reaches the limits of the metric, only the inner edge has to be visible.
    values += [edge for ranges in metric.marks[:3] for pair in ranges for edge in pair if edge not in limits]
    if not edges:
        values += metric.references.values()
    return axis.around(values or [0.0, 1.0], limits)


def _ranges(scale: Axis, metric: KeyMetric) -> Iterator[tuple[str, float, float]]:
    """The visible ranges of the marks: letter, start and end in per cent."""
    for letter, ranges in zip(MARKS, metric.marks, strict=False):
        for low, high in ranges:
            # A range that continues outside of the axis fills the margin too.
            start = 0.0 if low <= scale.low else scale.at(low)
            end = 100.0 if high >= scale.high else scale.at(high)
            if high > scale.low and low < scale.high and end > start:
                yield letter, start, end


def _bands(scale: Axis, metric: KeyMetric, bottom: float) -> list[Markup]:
    high = bottom - HEAD
    if not metric.marks:
        return [tag("rect", class_="band", width="100%", y=HEAD, height=high)]
    return [
        tag("rect", class_=f"band band-{letter}", x=f"{start:.2f}%", y=HEAD, width=f"{end - start:.2f}%", height=high)
        for letter, start, end in _ranges(scale, metric)
    ]


def _letters(scale: Axis, metric: KeyMetric) -> list[Markup]:
    """The letters of the marks, if their range is wide enough."""
    return [
        tag("text", letter, class_="band-letter", x=f"{(start + end) / 2:.2f}%", y=HEAD + 1, text_anchor="middle")
        for letter, start, end in _ranges(scale, metric)
        if end - start > 4
    ]


def _references(scale: Axis, metric: KeyMetric, bottom: float) -> tuple[list[Markup], int]:
    """A dashed line for each reference value, named below the axis; and the number of text lines for the names."""
    kinds: dict[float, list[str]] = {}
    for kind, value in sorted(metric.references.items(), key=lambda pair: (pair[1], pair[0] != "unbiased")):
        if scale.low <= value <= scale.high:
            kinds.setdefault(value, []).append(kind)
    labels = [(scale.at(value), listed(names)) for value, names in kinds.items()]
    lines = axis.line_numbers(labels)
    elements = []
    for (position, name), line in zip(labels, lines, strict=True):
        x, y = f"{position:.2f}%", bottom + 33 + line * LINE
        elements.append(tag("line", class_="reference", x1=x, x2=x, y1=HEAD, y2=bottom))
        elements.append(tag("text", name, class_="reference-name", x=x, y=y, text_anchor=axis.anchor(position, name)))
    return elements, max(lines, default=-1) + 1


def _row(scale: Axis, name: str, value: MetricEstimate, top: float, text: float) -> Markup:
    """A line of text on a plain background, and below it the bar on the ranges of the marks."""
    middle = top + text + STRIP / 2
    spans = [tag("tspan", "no value" if value.estimate is None else number(value.estimate))]
    if value.low is not None:  # CSS hides it on narrow screens; the bar still shows it
        spans.append(tag("tspan", f" ({interval(value.low, value.high)})", class_="range"))
    if value.mark:
        spans.append(tag("tspan", f"  {value.mark}", class_="letter"))
    elements = [
        tag("rect", class_="plain", width="100%", y=top, height=text),
        tag("text", name, class_="name", x="0%", y=top + 24),
        tag("text", *spans, class_="value", x="100%", y=top + text - 6, text_anchor="end"),
    ]
    if value.low is not None and value.high is not None:
        ends = {"x1": f"{scale.at(value.low):.2f}%", "x2": f"{scale.at(value.high):.2f}%"}
        elements.append(tag("line", class_="interval", y1=middle, y2=middle, **ends))
    if value.estimate is not None:
        elements.append(tag("circle", class_="estimate", cx=f"{scale.at(value.estimate):.2f}%", cy=middle, r=4.5))
    return tag("g", *elements)


def _ticks(scale: Axis, bottom: float) -> list[Markup]:
    values = axis.ticks(scale.low, scale.high)
    elements = [tag("line", class_="axis", x1="0%", x2="100%", y1=bottom, y2=bottom)]
    for value, text in zip(values, axis.tick_labels(values), strict=True):
        position = scale.at(value)
        x = f"{position:.2f}%"
        elements.append(tag("line", class_="axis", x1=x, x2=x, y1=bottom, y2=bottom + 4))
        elements.append(tag("text", text, class_="tick", x=x, y=bottom + 16, text_anchor=axis.anchor(position, text)))
    return elements


def _description(metric: KeyMetric, estimates: Sequence[tuple[str, MetricEstimate]]) -> str:
    rows = [
        f"{name} {number(value.estimate)}"
        + (f", 95 % interval {interval(value.low, value.high)}" if value.low is not None else "")
        + (f", mark {value.mark}" if value.mark else "")
        for name, value in estimates
    ]
    return f"{metric.name}, {metric.meaning}: {'; '.join(rows)}."
