"""Pure: the numbers of a report as tables; tables as CSV, Markdown and LaTeX."""

import csv
import io
import re
from collections.abc import Sequence

import msgspec

from batchbench.analyze.readings import CAREFUL
from batchbench.core import money
from batchbench.core.text import guard_formulas, sanitize
from batchbench.report.formats import NOTHING, day, interval, number
from batchbench.report.gather import AnalysedRun

Value = str | int | float | bool | None
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "−": "$-$",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of values under names."""

    name: str
    about: str
    columns: list[str]
    rows: list[list[Value]]


def data_tables(runs: Sequence[AnalysedRun]) -> list[Table]:
    """The tables with every number of the report's figures and tables."""
    return [_metrics(runs), _groups(runs), _missing(runs), _readings(runs), _costs(runs), _runs(runs)]


def examples(runs: Sequence[AnalysedRun]) -> Table:
    """The example answers."""
    rows: list[list[Value]] = [
        [run.column, run.model, example.label, example.careful, example.outcome, example.prompt, example.answer]
        for run in runs
        for example in run.analysis.examples
    ]
    columns = ["probe", "model", "label", "careful", "outcome", "prompt", "answer"]
    return Table(name="examples", about="sample answers", columns=columns, rows=rows)


def headline(runs: Sequence[AnalysedRun]) -> Table:
    """The headline metrics of all models, as a paper would print them."""
    rows: list[list[Value]] = []
    for run in runs:
        for name in [form for metric in run.analysis.headline for form in (metric, f"{CAREFUL}{metric}")]:
            if value := run.value(name):
                texts = [number(value.estimate), interval(value.low, value.high), value.mark or NOTHING]
                rows.append([run.column, name, run.model, _reading(run, name), *texts, "; ".join(run.stamps)])
    columns = ["Probe", "Metric", "Model", "Reading", "Estimate", "95 % interval", "Mark", "Note"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(name="headline", about="headline metrics", columns=columns, rows=rows)


def _metrics(runs: Sequence[AnalysedRun]) -> Table:
    fields = ["estimate", "se", "low", "high", "compat_low", "compat_high", "mark"]
    rows: list[list[Value]] = [
        [
            run.column,
            run.model,
            name,
            *(getattr(value, field) for field in fields),
            _reading(run, name),
            run.analysis.marks.get(name, value.mark),
        ]
        for run in runs
        for name, value in run.analysis.metrics.items()
        if name not in run.analysis.aliases
    ]
    about = "every metric with its standard error, intervals and mark; shown_mark: by both readings where they differ"
    columns = ["probe", "model", "metric", *fields, "reading", "shown_mark"]
    return Table(name="metrics", about=about, columns=columns, rows=rows)


def _reading(run: AnalysedRun, metric: str) -> str:
    """The reading that a metric belongs to, with its name."""
    reading = run.analysis.reading(metric)
    return f"{reading.kind}, {reading.name}" if reading else "reference"


def _readings(runs: Sequence[AnalysedRun]) -> Table:
    rows: list[list[Value]] = [
        [run.column, run.model, pair.stratum, pair.group, pair.reference, pair.careful, pair.answers]
        for run in runs
        if run.analysis.reading_agreement
        for pair in run.analysis.reading_agreement.pairs
    ]
    columns = ["probe", "model", "stratum", "group", "reference_label", "careful_label", "answers"]
    return Table(name="readings", about="labels by both readings, in each group", columns=columns, rows=rows)


def _groups(runs: Sequence[AnalysedRun]) -> Table:
    rows: list[list[Value]] = []
    for run in runs:
        for groups in run.groups:
            view = groups.view
            head: list[Value] = [run.column, run.model, view.rows, view.series]
            rows += [[*head, p.x, p.series, view.label, p.share, None, None, p.items] for p in groups.points]
            rows += [[*head, s.row, s.series, view.label, s.share, s.low, s.high, s.items] for s in groups.shares]
    columns = ["probe", "model", "rows", "series", "row", "in_series", "label", "share", "low", "high", "items"]
    return Table(name="groups", about="how often each answer was given in each group", columns=columns, rows=rows)


def _missing(runs: Sequence[AnalysedRun]) -> Table:
    fields = ["stratum", "group", "asked", "answered", "refused", "filtered", "truncated", "failed", "absent"]
    fields += ["undetected", "empty", "careful_undetected"]
    rows: list[list[Value]] = [
        [run.column, run.model, *(getattr(group, field) for field in fields)]
        for run in runs
        for group in run.analysis.missing
    ]
    about = "outcomes of the requests of each group"
    return Table(name="missing", about=about, columns=["probe", "model", *fields], rows=rows)


def _costs(runs: Sequence[AnalysedRun]) -> Table:
    rows: list[list[Value]] = [
        [
            run.column,
            run.model,
            cost.answers,
            None if cost.estimated is None else cost.estimated / money.MILLION,
            cost.spent / money.MILLION,
            cost.per_thousand,
            None if cost.input is None else cost.input / money.MILLION,
            None if cost.output is None else cost.output / money.MILLION,
            cost.source,
            run.analysis.origin.emulated,
        ]
        for run in runs
        if (cost := run.cost)
    ]
    columns = ["probe", "model", "answers", "estimated_usd", "spent_usd", "usd_per_1000_answers"]
    columns += ["input_usd_per_million_tokens", "output_usd_per_million_tokens", "prices", "emulated"]
    return Table(name="costs", about="what each run cost", columns=columns, rows=rows)


def _runs(runs: Sequence[AnalysedRun]) -> Table:
    rows: list[list[Value]] = []
    for run in runs:
        analysis, origin, provenance = run.analysis, run.analysis.origin, run.provenance
        rows.append(
            [
                run.column,
                run.model,
                "; ".join(run.stamps),
                provenance.run,
                origin.manifest,
                origin.answers,
                " ".join(f"{name}:{source.sha256}" for name, source in provenance.data.items()),
                analysis.version,
                provenance.items,
                provenance.repetitions,
                analysis.coverage.asked,
                analysis.coverage.detected,
                analysis.replicates,
                analysis.seed,
                None if provenance.first is None else day(provenance.first),
                None if provenance.last is None else day(provenance.last),
                " ".join(f"{name} {version}" for name, version in analysis.software.items()),
                "; ".join(f"{one.kind}: {one.name}, sha256 {one.sha256}" for one in analysis.readings),
            ]
        )
    columns = ["probe", "model", "stamps", "run", "manifest", "answers_sha256", "data_sha256", "probe_version"]
    columns += ["items", "repetitions", "asked", "readable", "replicates", "seed", "first_day", "last_day", "software"]
    columns.append("readings")
    return Table(name="runs", about="where each run can be found, and what it was made of", columns=columns, rows=rows)


def as_csv(table: Table) -> str:
    """Comma-separated values; text that a spreadsheet would take for a formula gets an apostrophe before it."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\r\n")
    writer.writerow(table.columns)
    writer.writerows([[_harmless(value) for value in row] for row in table.rows])
    return target.getvalue()


def _harmless(value: Value) -> Value:
    if isinstance(value, float):
        return f"{value:.9g}"  # report.json has every digit
    if not isinstance(value, str):
        return value
    return guard_formulas(sanitize(value))


def as_markdown(table: Table) -> str:
    """A table for a README or an issue."""
    numbers = _numeric(table)
    lines = [table.columns, ["---:" if index in numbers else "---" for index in range(len(table.columns))]]
    lines += [[_escaped_markdown(value) for value in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _escaped_markdown(value: Value) -> str:
    text = " ".join(sanitize("" if value is None else str(value)).split())
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", text)  # an underscore inside a word is not markup


def as_latex(table: Table) -> str:
    """A table for a paper."""
    numbers = _numeric(table)
    alignment = "".join("r" if index in numbers else "l" for index in range(len(table.columns)))
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        " & ".join(map(_escaped_latex, table.columns)) + " \\\\",
        "\\midrule",
        *(" & ".join(map(_escaped_latex, row)) + " \\\\" for row in table.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _escaped_latex(value: Value) -> str:
    text = " ".join(sanitize("" if value is None else str(value)).split())
    return "".join(LATEX.get(letter, letter) for letter in text)


def _numeric(table: Table) -> set[int]:
    return {index for index, name in enumerate(table.columns) if name in ("Estimate", "95 % interval")}
