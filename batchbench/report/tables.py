"""Pure: the numbers of a report as tables, and tables as CSV, Markdown and LaTeX."""

import csv
import io
import re
from collections.abc import Sequence

import msgspec

from batchbench.core import money
from batchbench.core.text import sanitize
from batchbench.report.gather import Result
from batchbench.report.words import NOTHING, day, interval, number

Value = str | int | float | bool | None
FORMULA = tuple("=+-@\t|%\uff1d\uff0b\uff0d\uff20")  # a spreadsheet would compute a text that starts like this
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


def underlying(results: Sequence[Result]) -> list[Table]:
    """Every number that the figures and tables of a report are made of."""
    return [_metrics(results), _groups(results), _missing(results), _costs(results), _runs(results)]


def examples(results: Sequence[Result]) -> Table:
    """The answers to look at."""
    rows: list[list[Value]] = [
        [result.column, result.model, example.label, example.outcome, example.prompt, example.answer]
        for result in results
        for example in result.analysis.examples
    ]
    columns = ["probe", "model", "label", "outcome", "prompt", "answer"]
    return Table(name="examples", about="sample answers", columns=columns, rows=rows)


def headline(results: Sequence[Result]) -> Table:
    """The headline metrics of all models, as a paper would print them."""
    rows: list[list[Value]] = []
    for result in results:
        for name in result.analysis.headline:
            if value := result.value(name):
                said = [number(value.estimate), interval(value.low, value.high), value.mark or NOTHING]
                rows.append([result.column, name, result.model, *said, "; ".join(result.stamps)])
    columns = ["Probe", "Metric", "Model", "Estimate", "95 % interval", "Mark", "Note"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(name="headline", about="headline metrics", columns=columns, rows=rows)


def _metrics(results: Sequence[Result]) -> Table:
    fields = ["estimate", "se", "low", "high", "compat_low", "compat_high", "mark"]
    rows: list[list[Value]] = [
        [result.column, result.model, name, *(getattr(value, field) for field in fields)]
        for result in results
        for name, value in result.analysis.metrics.items()
        if name not in result.analysis.aliases
    ]
    about = "every metric with its standard error, intervals and mark"
    return Table(name="metrics", about=about, columns=["probe", "model", "metric", *fields], rows=rows)


def _groups(results: Sequence[Result]) -> Table:
    rows: list[list[Value]] = []
    for result in results:
        for found in result.groups:
            view = found.view
            head: list[Value] = [result.column, result.model, view.rows, view.series]
            rows += [[*head, p.x, p.series, view.label, p.share, None, None, p.items] for p in found.points]
            rows += [[*head, s.row, s.series, view.label, s.share, s.low, s.high, s.items] for s in found.shares]
    columns = ["probe", "model", "rows", "series", "row", "in_series", "label", "share", "low", "high", "items"]
    return Table(name="groups", about="how often each answer was given in each group", columns=columns, rows=rows)


def _missing(results: Sequence[Result]) -> Table:
    fields = ["stratum", "group", "asked", "answered", "refused", "filtered", "truncated", "failed", "absent"]
    fields.append("undetected")
    rows: list[list[Value]] = [
        [result.column, result.model, *(getattr(group, field) for field in fields)]
        for result in results
        for group in result.analysis.missing
    ]
    about = "what became of the requests of each group"
    return Table(name="missing", about=about, columns=["probe", "model", *fields], rows=rows)


def _costs(results: Sequence[Result]) -> Table:
    rows: list[list[Value]] = [
        [
            result.column,
            result.model,
            cost.answers,
            None if cost.estimated is None else cost.estimated / money.MILLION,
            cost.spent / money.MILLION,
            cost.per_thousand,
            cost.input / money.MILLION,
            cost.output / money.MILLION,
            cost.source,
            result.analysis.origin.emulated,
        ]
        for result in results
        if (cost := result.cost)
    ]
    columns = ["probe", "model", "answers", "estimated_usd", "spent_usd", "usd_per_1000_answers"]
    columns += ["input_usd_per_million_tokens", "output_usd_per_million_tokens", "prices", "emulated"]
    return Table(name="costs", about="what each run cost", columns=columns, rows=rows)


def _runs(results: Sequence[Result]) -> Table:
    rows: list[list[Value]] = []
    for result in results:
        analysis, origin, found = result.analysis, result.analysis.origin, result.provenance
        rows.append(
            [
                result.column,
                result.model,
                "; ".join(result.stamps),
                found.run,
                origin.manifest,
                origin.answers,
                " ".join(f"{name}:{source.sha256}" for name, source in found.data.items()),
                analysis.version,
                found.items,
                found.repetitions,
                analysis.coverage.asked,
                analysis.coverage.detected,
                analysis.replicates,
                analysis.seed,
                None if found.first is None else day(found.first),
                None if found.last is None else day(found.last),
                " ".join(f"{name} {version}" for name, version in analysis.software.items()),
            ]
        )
    columns = ["probe", "model", "stamps", "run", "manifest", "answers_sha256", "data_sha256", "probe_version"]
    columns += ["items", "repetitions", "asked", "readable", "replicates", "seed", "first_day", "last_day", "software"]
    return Table(name="runs", about="where each run can be found, and what it was made of", columns=columns, rows=rows)


def as_csv(table: Table) -> str:
    """Comma-separated values; text that a spreadsheet would take for a formula is quoted with an apostrophe."""
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
    text = sanitize(value)
    # Some programs begin a new cell at a line within quotes.
    return "\n".join(f"'{line}" if line.lstrip(" ").startswith(FORMULA) else line for line in text.split("\n"))


def as_markdown(table: Table) -> str:
    """A table for a README or an issue."""
    numbers = _numeric(table)
    lines = [table.columns, ["---:" if place in numbers else "---" for place in range(len(table.columns))]]
    lines += [[_escaped_markdown(value) for value in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _escaped_markdown(value: Value) -> str:
    text = " ".join(sanitize("" if value is None else str(value)).split())
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", text)  # a lone underscore inside a word is no markup


def as_latex(table: Table) -> str:
    """A table for a paper."""
    numbers = _numeric(table)
    shape = "".join("r" if place in numbers else "l" for place in range(len(table.columns)))
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{shape}}}",
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
    return {place for place, name in enumerate(table.columns) if name in ("Estimate", "95 % interval")}
