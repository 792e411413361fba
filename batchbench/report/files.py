"""IO: the report as files: tables in CSV, Markdown and LaTeX, figures in SVG and PNG, everything in JSON."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from batchbench import __version__
from batchbench.analyze.analysis import Analysis
from batchbench.core.store import Store
from batchbench.core.text import BIDI
from batchbench.report import draw, tables
from batchbench.report.gather import AnalysedRun, Cost, Provenance
from batchbench.report.probe_section import Drawn
from batchbench.report.shares import Groups
from batchbench.report.tables import Table

FORMAT = 1  # of report.json
OWN = re.compile(r"(figures/)?[A-Za-z0-9_-]+\.(csv|md|tex|svg|png|json)")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run in report.json."""

    probe: str
    model: str
    stamps: list[str]
    analysis: Analysis
    groups: list[Groups]
    cost: Cost | None  # micro-dollars
    provenance: Provenance


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The report for programs."""

    format: int = FORMAT
    batchbench: str = __version__
    title: str
    results: list[Entry]
    files: list[str] = []  # that stand beside this one


def files_folder(out: Path) -> Path:
    """Where the files of a report are."""
    return out.with_name(f"{out.stem}-files")


def document(title: str, results: Sequence[AnalysedRun], *, examples: bool = True, files: Sequence[str] = ()) -> bytes:
    """The report as JSON."""
    entries = [
        Entry(
            probe=result.column,
            model=result.model,
            stamps=result.stamps,
            analysis=_lean(result.analysis, examples=examples),
            groups=result.groups,
            cost=result.cost,
            provenance=result.provenance,
        )
        for result in results
    ]
    content = msgspec.json.encode(Document(title=title, results=entries, files=list(files)))
    for letter in BIDI:  # the same text, spelt so that nobody's editor is turned round by it
        content = content.replace(letter.encode(), f"\\u{ord(letter):04x}".encode())
    return content


def _lean(analysis: Analysis, *, examples: bool) -> Analysis:
    """An analysis without the second copies of metrics that have two names."""
    metrics = {name: value for name, value in analysis.metrics.items() if name not in analysis.aliases}
    return msgspec.structs.replace(analysis, metrics=metrics, examples=analysis.examples if examples else [])


def write(
    store: Store,
    target: Path,
    title: str,
    results: Sequence[AnalysedRun],
    found: Sequence[Table],
    figures: Sequence[Drawn],
) -> None:
    """Replace the files of the last report; files that are not ours are left alone."""
    headline = tables.headline(results)
    content: dict[str, bytes] = {
        "headline.md": tables.as_markdown(headline).encode(),
        "headline.tex": tables.as_latex(headline).encode(),
    }
    for table in [*found, tables.examples(results)]:
        content[f"{table.name}.csv"] = tables.as_csv(table).encode()
    stamps = list(dict.fromkeys(stamp.partition(":")[0] for result in results for stamp in result.stamps))
    raster = png_converter()
    for name, heading, figure in figures:
        drawing = draw.alone(figure, heading, stamps)
        content[f"figures/{name}.svg"] = drawing.encode()
        if raster:
            content[f"figures/{name}.png"] = raster(drawing)
    _remove_last(target)
    for name, data in content.items():
        store.write(target / name, data, last=False)
    store.write(target / "report.json", document(title, results, files=sorted(content)))


def png_converter() -> Callable[[str], bytes] | None:
    """What makes PNG of SVG, where the extra `png` is installed."""
    try:
        import resvg_py
    except ImportError:
        return None
    return lambda drawing: bytes(resvg_py.svg_to_bytes(svg_string=drawing, zoom=2))


def _remove_last(target: Path) -> None:
    """Remove what the last report put here, by its own list, so that no figure of a former model stays behind."""
    try:
        last = msgspec.json.decode((target / "report.json").read_bytes(), type=Document)
    except (OSError, ValueError, RecursionError):
        return
    for name in last.files:
        if OWN.fullmatch(name):
            (target / name).unlink(missing_ok=True)
