"""Stage four: one page that shows what analyses found, and the same as files for papers and programs.

The page is one HTML file that asks nothing of the network: style, script, figures and tables are inside, and a content
security policy names the only style and the only script that may act. Nothing in it depends on when or where it was
made, so the same analyses give the same bytes.
"""

from collections.abc import Sequence
from pathlib import Path

from batchbench.core.store import Store
from batchbench.report import files, gather, page, probe_section, tables

TITLE = "batchbench report"


def build(store: Store, analyses: Sequence[Path], out: Path, *, title: str = TITLE) -> Path:
    """Write the report on these analysed runs to `out`, and its tables and figures into the folder beside it."""
    results = gather.read(store, analyses)
    columns = list(dict.fromkeys(result.column for result in results))
    sections = [probe_section.section([result for result in results if result.column == column]) for column in columns]
    found = tables.underlying(results)
    content = page.page(title, results, [section for section, _ in sections], found)
    figures = [drawn for _, several in sections for drawn in several]
    files.write(store, files.files_folder(out), title, results, found, figures)
    store.write(out, content.encode())
    return out
