"""Pure: the HTML page around the sections."""

from collections.abc import Sequence

from batchbench import __version__
from batchbench.report import appendix, files, overview, style
from batchbench.report.draw import breakable
from batchbench.report.formats import counted, day
from batchbench.report.gather import AnalysedRun
from batchbench.report.markup import Markup, joined, tag
from batchbench.report.overview import anchor, models
from batchbench.report.tables import Table


def page(title: str, runs: Sequence[AnalysedRun], sections: Sequence[Markup], tables: Sequence[Table]) -> str:
    """The content of the HTML file."""
    sheet, script = Markup(style.page()), Markup(style.asset("page.js"))
    policy = (
        f"default-src 'none'; style-src {style.hashed(sheet)}; script-src {style.hashed(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    columns = list(dict.fromkeys(run.column for run in runs))
    parts = [overview.glance(runs), *sections, appendix.came_back(runs), appendix.costs(runs)]
    parts += [appendix.method(runs), appendix.downloads(tables, files.document(title, runs, examples=False))]
    html = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=Markup(policy)),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("title", title),
            tag("style", sheet),
        ),
        tag(
            "body",
            tag("a", "Skip to the results", href="#glance", class_="skip"),
            _header(title, runs, columns),
            tag("main", joined(parts, "\n")),
            tag("footer", tag("p", f"Made by batchbench {__version__} from the files of the runs listed above.")),
            tag("script", script),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{html}\n"


def _header(title: str, runs: Sequence[AnalysedRun], columns: Sequence[str]) -> Markup:
    answers = sum(run.analysis.coverage.attempts for run in runs)
    lasts = [run.provenance.last for run in runs if run.provenance.last is not None]
    facts = [counted(len(models(runs)), "model"), counted(len(columns), "probe"), counted(answers, "answer")]
    if lasts:
        facts.append(f"collected until {day(max(lasts))}")
    links = [("At a glance", "glance"), *((column, anchor(column)) for column in columns)]
    links += [("What came back", "missing"), ("Costs", "costs"), ("Method", "method"), ("Downloads", "downloads")]
    if not any(run.cost for run in runs):
        links.remove(("Costs", "costs"))
    listing = [tag("li", tag("a", breakable(name), href=f"#{section}")) for name, section in links]
    return tag(
        "header",
        tag("h1", title),
        tag("p", " · ".join(facts), class_="quiet"),
        overview.banner(runs),
        tag("nav", tag("ul", *listing), aria_label="Sections"),
    )
