"""Pure: the page around the sections."""

from collections.abc import Sequence

from batchbench import __version__
from batchbench.report import appendix, files, overview, style
from batchbench.report.draw import breakable
from batchbench.report.formats import counted, day
from batchbench.report.gather import AnalysedRun
from batchbench.report.markup import Markup, joined, tag
from batchbench.report.overview import anchor, models
from batchbench.report.tables import Table


def page(title: str, results: Sequence[AnalysedRun], sections: Sequence[Markup], tables: Sequence[Table]) -> str:
    """The whole file."""
    sheet, script = Markup(style.page()), Markup(style.asset("page.js"))
    policy = (
        f"default-src 'none'; style-src {style.hashed(sheet)}; script-src {style.hashed(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    columns = list(dict.fromkeys(result.column for result in results))
    parts = [overview.glance(results), *sections, appendix.came_back(results), appendix.costs(results)]
    parts += [appendix.method(results), appendix.downloads(tables, files.document(title, results, examples=False))]
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
            _header(title, results, columns),
            tag("main", joined(parts, "\n")),
            tag("footer", tag("p", f"Made by batchbench {__version__} from the files of the runs listed above.")),
            tag("script", script),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{html}\n"


def _header(title: str, results: Sequence[AnalysedRun], columns: Sequence[str]) -> Markup:
    answers = sum(result.analysis.coverage.attempts for result in results)
    lasts = [result.provenance.last for result in results if result.provenance.last is not None]
    facts = [counted(len(models(results)), "model"), counted(len(columns), "probe"), counted(answers, "answer")]
    if lasts:
        facts.append(f"collected until {day(max(lasts))}")
    links = [("At a glance", "glance"), *((column, anchor(column)) for column in columns)]
    links += [("What came back", "missing"), ("Costs", "costs"), ("Method", "method"), ("Downloads", "downloads")]
    if not any(result.cost for result in results):
        links.remove(("Costs", "costs"))
    listing = [tag("li", tag("a", breakable(name), href=f"#{place}")) for name, place in links]
    return tag(
        "header",
        tag("h1", title),
        tag("p", " · ".join(facts), class_="quiet"),
        overview.banner(results),
        tag("nav", tag("ul", *listing), aria_label="Sections"),
    )
