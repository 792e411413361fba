"""Write the report on analysed runs."""

from pathlib import Path

import msgspec

from batchbench import report
from batchbench.core.store import Store
from batchbench.errors import UsageError, unknown
from batchbench.probes import load_probe
from batchbench.report import build_report, gather
from batchbench.report.files import files_folder
from batchbench.runs.folder import read_run


class WrittenReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report on disk."""

    report: Path
    files: Path  # the folder with its tables and figures
    runs: list[Path]


def write_report(
    names: list[str], models: list[str], store: Store, *, out: Path | None = None, title: str | None = None
) -> WrittenReport:
    """Report on the analysed runs of these probes and models; an empty list stands for all of them."""
    folders = _chosen(list(dict.fromkeys(names)), list(dict.fromkeys(models)), store)
    page = build_report(store, folders, out or store.home / "report.html", title=title or report.TITLE)
    return WrittenReport(report=page, files=files_folder(page), runs=folders)


def _chosen(names: list[str], models: list[str], store: Store) -> list[Path]:
    for name in names:
        load_probe(name)  # raises UsageError if it does not exist
    folders = [Path(model) for model in models if (Path(model) / "metrics.json").is_file()]
    wanted = [model for model in models if Path(model) not in folders]
    analysed = {folder: read_run(folder / "run.json").target.name for folder in gather.analysed(store)}
    for model in wanted:
        if model not in analysed.values():
            raise unknown("analysed model", model, analysed.values())
    if wanted or not folders:
        folders += [folder for folder, model in analysed.items() if not wanted or model in wanted]
    chosen = [folder for folder in folders if not names or gather.read_analysis(folder / "metrics.json").probe in names]
    if not chosen:
        raise UsageError("none of these has been analysed yet: `batchbench run`, then `batchbench analyze`")
    return chosen
