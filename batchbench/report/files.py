"""IO: the files beside the page: tables in CSV, Markdown and LaTeX, figures in SVG and PNG, everything in JSON."""

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
from batchbench.report.probe_section import FigureFile
from batchbench.report.shares import Groups
from batchbench.report.tables import Table

FORMAT = 1  # of report.json
OWN_FILES = re.compile(r"(figures/)?[A-Za-z0-9_-]+\.(csv|md|tex|svg|png|json)")


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
    """The content of report.json."""

    format: int = FORMAT
    batchbench: str = __version__
    title: str
    results: list[Entry]
    files: list[str] = []  # all other files of the report, except the page


def files_folder(out: Path) -> Path:
    """The folder for the files of the report `out`."""
    return out.with_name(f"{out.stem}-files")


def document(title: str, runs: Sequence[AnalysedRun], *, examples: bool = True, files: Sequence[str] = ()) -> bytes:
    """The content of report.json; without `examples`, the example answers are left out."""
    entries = [
        Entry(
            probe=run.column,
            model=run.model,
            stamps=run.stamps,
            analysis=_without_aliases(run.analysis, examples=examples),
            groups=run.groups,
            cost=run.cost,
            provenance=run.provenance,
        )
        for run in runs
    ]
    content = msgspec.json.encode(Document(title=title, results=entries, files=list(files)))
    for letter in BIDI:  # as JSON escapes, so that they do not reorder text in an editor
        content = content.replace(letter.encode(), f"\\u{ord(letter):04x}".encode())
    return content


def _without_aliases(analysis: Analysis, *, examples: bool) -> Analysis:
    metrics = {name: value for name, value in analysis.metrics.items() if name not in analysis.aliases}
    return msgspec.structs.replace(analysis, metrics=metrics, examples=analysis.examples if examples else [])


def write(
    store: Store,
    target: Path,
    title: str,
    runs: Sequence[AnalysedRun],
    data: Sequence[Table],
    figures: Sequence[FigureFile],
) -> None:
    """Replace the files of the last report in the folder `target`; other files are not touched."""
    headline = tables.headline(runs)
    content: dict[str, bytes] = {
        "headline.md": tables.as_markdown(headline).encode(),
        "headline.tex": tables.as_latex(headline).encode(),
    }
    for table in [*data, tables.examples(runs)]:
        content[f"{table.name}.csv"] = tables.as_csv(table).encode()
    stamps = list(dict.fromkeys(stamp.partition(":")[0] for run in runs for stamp in run.stamps))
    to_png = png_converter()
    for name, heading, figure in figures:
        svg = draw.standalone(figure, heading, stamps)
        content[f"figures/{name}.svg"] = svg.encode()
        if to_png:
            content[f"figures/{name}.png"] = to_png(svg)
    _remove_last_report(target)
    for name, file_content in content.items():
        store.write(target / name, file_content, last=False)
    store.write(target / "report.json", document(title, runs, files=sorted(content)))


def png_converter() -> Callable[[str], bytes] | None:
    """The function from SVG to PNG; None if the extra `png` is not installed."""
    try:
        import resvg_py
    except ImportError:
        return None
    return lambda svg: bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2))


def _remove_last_report(target: Path) -> None:
    """Remove the files that the last report lists, so that no figure of a former model is left."""
    try:
        last = msgspec.json.decode((target / "report.json").read_bytes(), type=Document)
    except (OSError, ValueError, RecursionError):
        return
    for name in last.files:
        if OWN_FILES.fullmatch(name):
            (target / name).unlink(missing_ok=True)
