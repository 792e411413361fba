"""Stage four: one page about the analyses, and the same numbers as files for papers and programs.

The page is one HTML file without external resources: style, script, figures and tables are inside. A content security
policy allows exactly its one style and its one script. The page does not depend on the time or place of the build, so
the same analyses give the same bytes.
"""

from collections.abc import Sequence
from pathlib import Path

from batchbench.core.store import Store
from batchbench.report import files, gather, page, probe_section, tables

TITLE = "batchbench report"


def build_report(store: Store, analyses: Sequence[Path], out: Path, *, title: str = TITLE) -> Path:
    """Write the report about these analysed runs to `out`, and its tables and figures into the folder beside it."""
    return write_page(store, gather.read(store, analyses), out, title=title)


def write_page(store: Store, runs: Sequence[gather.AnalysedRun], out: Path, *, title: str = TITLE) -> Path:
    """Write the report about these runs, which `gather.arrange` has named."""
    columns = list(dict.fromkeys(run.column for run in runs))
    sections = [probe_section.section([run for run in runs if run.column == column]) for column in columns]
    data = tables.data_tables(runs)
    content = page.page(title, runs, [section for section, _ in sections], data)
    figures = [figure for _, figures in sections for figure in figures]
    files.write(store, files.files_folder(out), title, runs, data, figures)
    store.write(out, content.encode())
    return out
