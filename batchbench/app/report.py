"""Write the report on analysed runs."""

from pathlib import Path

import msgspec

from batchbench import report
from batchbench.core.store import Store
from batchbench.errors import DataError, UsageError, unknown
from batchbench.probes import load_probe
from batchbench.report import gather
from batchbench.report.files import files_folder
from batchbench.report.gather import AnalysedRun
from batchbench.runs.folder import read_run
from batchbench.runs.view import BrokenRun


class WrittenReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report on disk."""

    report: Path
    files: Path  # the folder with its tables and figures
    runs: list[Path]
    broken: list[BrokenRun]  # analysed runs with a damaged file; they are not in the report


def write_report(
    names: list[str], models: list[str], store: Store, *, out: Path | None = None, title: str | None = None
) -> WrittenReport:
    """Report on the analysed runs of these probes and models; an empty list stands for all of them."""
    chosen = _chosen(list(dict.fromkeys(names)), list(dict.fromkeys(models)), store)
    runs: dict[Path, AnalysedRun] = {}
    damage: dict[Path, DataError] = {}
    for folder in dict.fromkeys(chosen):
        try:
            runs[folder] = gather.read_one(store, folder)
        except DataError as error:
            damage[folder] = error
    if damage and not runs:
        raise next(iter(damage.values()))
    arranged = gather.arrange(list(runs.values()))
    page = report.write_page(store, arranged, out or store.home / "report.html", title=title or report.TITLE)
    broken = [BrokenRun(run=str(folder), error=str(error)) for folder, error in damage.items()]
    return WrittenReport(report=page, files=files_folder(page), runs=list(runs), broken=broken)


def _chosen(names: list[str], models: list[str], store: Store) -> list[Path]:
    """The analysed runs of these probes and models. A run that cannot be read counts as chosen: it is reported."""
    for name in names:
        load_probe(name)  # raises UsageError if it does not exist
    folders = [Path(model) for model in models if (Path(model) / "metrics.json").is_file()]
    wanted = [model for model in models if Path(model) not in folders]
    analysed = {folder: _model(folder) for folder in gather.analysed(store)}
    for model in wanted:
        if model not in analysed.values():
            raise unknown("analysed model", model, filter(None, analysed.values()))
    if wanted or not folders:
        folders += [folder for folder, model in analysed.items() if not wanted or model in wanted]
    chosen = [folder for folder in folders if not names or _probe(folder) in names]
    if not chosen:
        raise UsageError("none of these has been analysed yet: `batchbench run`, then `batchbench analyze`")
    return chosen


def _model(folder: Path) -> str | None:
    """The model of a run; None if its run.json is damaged."""
    try:
        return read_run(folder / "run.json").target.name
    except DataError:
        return None


def _probe(folder: Path) -> str:
    """The probe of an analysed run; by the name of its folder if metrics.json is damaged."""
    try:
        return gather.read_analysis(folder / "metrics.json").probe
    except DataError:
        return folder.absolute().parent.name.rpartition("-")[0]
