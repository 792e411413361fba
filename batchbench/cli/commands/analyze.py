"""`batchbench analyze PROBE...`"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from batchbench.cli import output
from batchbench.compile.manifest import folder_of, read_manifest
from batchbench.errors import DataError, UsageError
from batchbench.runs.answers import read_answers
from batchbench.runs.folder import find_run, read_run, read_state

if TYPE_CHECKING:
    import polars as pl

    from batchbench.analyze.analysis import Analysis
    from batchbench.analyze.compare import Comparison
    from batchbench.analyze.labelled_answers import LabelledAnswers
    from batchbench.compile.manifest import Manifest
    from batchbench.core.store import Store
    from batchbench.probes.kit.probe import Params, Probe

DESCRIPTION = """\
Read the answers of runs, or of a file, and print every metric of the probe with its 95 % interval, its mark and
what is missing. Two or more models, or files, are also compared item by item. A run that is not finished can be
analyzed: what has been answered is a fair sample.

  batchbench analyze hiring_an --model sim:random
  batchbench analyze gest --model sim:unbiased --model sim:stereotyping      and the differences between them
  batchbench analyze isear --answers answers.jsonl --json                    answers obtained elsewhere

A run's metrics.json, metrics.parquet and cells.parquet are written into its folder, or with -o into DIR.

A file of answers holds JSON lines or parquet, in one of three shapes:

  a line per prompt    {"probe": "isear", "item_id": "7", "metadata": {"gender": "a man"}, "answers": ["joy"]}
                       `answers` has one text for each repetition
  by custom id         {"custom_id": "x1f-120-0", "text": "joy"}      or "id": 120, "rep": 0; the manifest's row
  by the item          {"item_id": "7", "gender": "a man", "text": "joy"}

Lines with one item_id are one item, the unit that is resampled; it may be left out where an item has one prompt.
Columns: isear gender; hiring_an name, role, qualification (or gender, race, role_score, qualification);
inventories source, gender; gest stereotype, options (what (a), (b), (c) stand for); wino_bias pro_stereotyped, options;
crows_pairs bias_type, mask1, mask2. Of the last two, an answer may be a list of predictions ({"token_str", "score"}),
and a line with `text` may have `logprobs` ({"token", "logprob"}). `outcome` may say refused, filtered, truncated or
failed; a failed request, and an answer of null, is no attempt.
"""
NOTHING = "–"
MOST_DRAWINGS = 1_000_000


def add(commands: output.Subparsers) -> None:
    """Declare the command."""
    parser = output.command(
        commands, "analyze", run, help="metrics, intervals and marks from answers", description=DESCRIPTION
    )
    parser.add_argument("probes", nargs="+", metavar="PROBE", help="see `batchbench probes`")
    parser.add_argument(
        "--model", action="append", default=[], metavar="M", dest="models", help="whose run to read, or its folder"
    )
    parser.add_argument(
        "--answers", action="append", default=[], metavar="FILE", type=Path, help="a file of answers instead of a run"
    )
    parser.add_argument("--replicates", type=_drawings, default=1000, metavar="N", help="bootstrap drawings (1000)")
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="of the drawings (0)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="K=V", dest="settings", help="a probe's parameter"
    )
    parser.add_argument("--all", action="store_true", help="print every metric, not only the first ones")
    parser.add_argument("-o", type=Path, metavar="DIR", dest="folder", help="write metrics.json and the tables here")


def run(args: argparse.Namespace) -> int:
    """Analyze each probe with each model, then compare."""
    from batchbench import probes
    from batchbench.analyze.analysis import analyze, write_analysis
    from batchbench.analyze.compare import compare
    from batchbench.analyze.labelled_answers import label_expression
    from batchbench.app import params as settings

    if bool(args.models) == bool(args.answers):
        raise UsageError("say whose answers to analyze: either --model M or --answers FILE")
    chosen = [probes.load(name) for name in dict.fromkeys(args.probes)]
    if args.answers and len(chosen) > 1:
        raise UsageError("a file of answers belongs to one probe: name just that one")
    store = output.store(args)
    for probe in chosen:
        label_expression(probe)  # before anything is fetched or read
    analyses: list[Analysis] = []
    comparisons: list[Comparison] = []
    wanted = settings.parse(args.settings)
    sources = list(dict.fromkeys(args.answers or args.models))
    fitting = {source: settings.params(chosen, wanted, _provider(source)) for source in sources}
    read = _file_answers if args.answers else _run_answers
    for place, probe in enumerate(chosen):
        with output.progress(args, f"reading answers to {probe.name}", ""):
            samples = [read(args, store, probe, fitting[source][place], source) for source in sources]
        for number, (sample, home) in enumerate(samples):
            params = fitting[sources[number]][place]
            with output.progress(args, f"analyzing {probe.name} {sample.origin.model}", ""):
                analysis, cells = analyze(probe, params, sample, replicates=args.replicates, seed=args.seed)
            several = len(samples) > 1 or len(chosen) > 1
            folder = args.folder / f"{probe.name}-{number}" if args.folder and several else args.folder or home
            if folder:
                write_analysis(analysis, cells, folder, store)
            analyses.append(analysis)
        with output.progress(args, f"comparing {probe.name}", ""):
            runs = [sample for sample, _ in samples]
            comparisons += compare(probe, runs, replicates=args.replicates, seed=args.seed)
    if args.json:
        output.show_json(analyses[0] if len(analyses) == 1 else {"analyses": analyses, "comparisons": comparisons})
        return 0
    for analysis in analyses:
        output.show(_shown(analysis, every=args.all))
    for comparison in comparisons:
        output.show(_compared(comparison))
    return 0


def _provider(source: "str | Path") -> str | None:
    """Whose form of a probe a source has: a model's own, a run's, or for a file nobody's."""
    from batchbench.providers import target as targets

    if isinstance(source, Path):
        return None
    run = Path(source) / "run.json"
    return read_run(run).target.provider if run.is_file() else targets.parse(source)[0]


def _whole(word: str) -> int:
    if not word.isdecimal() or len(word) > 18:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at most 18 digits")
    return int(word)


def _drawings(word: str) -> int:
    if _whole(word) > MOST_DRAWINGS:
        raise argparse.ArgumentTypeError(f"{word!r} is more than {MOST_DRAWINGS:,}")
    return int(word)


# -- where answers come from -------------------------------------------------------------------------------


def _run_answers(
    args: argparse.Namespace, store: "Store", probe: "Probe[Params]", params: "Params", model: str
) -> "tuple[LabelledAnswers, Path | None]":
    """The answers of a model's run, and the folder its results belong into."""

    manifest_folder, manifest = _manifest(args, store, probe, params)
    folder = find_run(store, manifest_folder.name, model)
    return answers_of(folder, probe, manifest_folder, manifest, model), folder


def answers_of(
    folder: Path, probe: "Probe[Params]", manifest_folder: Path, manifest: "Manifest", model: str
) -> "LabelledAnswers":
    """The answers in the folder of a run, read."""
    import polars as pl

    from batchbench.analyze.labelled_answers import Origin
    from batchbench.analyze.read import RunSize, label_run

    state = read_state(folder)
    if state.asked is None:
        raise UsageError(f"nothing has been asked in {folder} yet: `batchbench run {probe.name} --model {model}`")
    target = read_run(folder / "run.json").target
    origin = Origin(
        model=model,
        stored=state.answered(),
        manifest=manifest_folder.name,
        prices=state.asked.rates.source,
        sample_data=manifest.sample_data,
        emulated=target.emulated,
    )
    size = RunSize(items=state.asked.items, repetitions=state.asked.repetitions)
    answers = read_answers(folder, state)
    if target.top_logprobs and not answers.select(pl.col("logprobs").count()).collect().item():
        raise DataError(f"{model} gave no log-probabilities, so {probe.name} has to ask it with --set form=question")
    return label_run(probe, manifest_folder, manifest, answers, size, origin)


def _file_answers(
    args: argparse.Namespace, store: "Store", probe: "Probe[Params]", params: "Params", path: Path
) -> "tuple[LabelledAnswers, Path | None]":
    """The answers in a file, which has no folder of its own for results."""
    from batchbench.analyze.answer_files import label_file
    from batchbench.compile.data_cache import load_table

    def table(name: str) -> "pl.DataFrame":
        return load_table(store, name, sample=params.data == "sample", note=output.note(args))[0]

    def manifest() -> "pl.DataFrame":
        import polars as pl

        from batchbench.compile.manifest import checked_shards

        folder, found = _manifest(args, store, probe, params)
        return pl.scan_parquet(checked_shards(folder, found), glob=False).drop("prompt").collect()

    return label_file(path, probe, table, manifest, sample_data=params.data == "sample"), None


def _manifest(
    args: argparse.Namespace, store: "Store", probe: "Probe[Params]", params: "Params"
) -> "tuple[Path, Manifest]":
    """The compiled prompts that answers belong to."""
    from batchbench.compile.compiler import identify
    from batchbench.compile.data_cache import load_table

    note = output.note(args)
    sources = {name: load_table(store, name, sample=params.data == "sample", note=note)[1] for name in probe.datasets}
    folder = folder_of(store, identify(probe, params, sources))
    manifest = read_manifest(folder)
    if manifest is None:
        raise UsageError(f"{probe.name} has not been asked with these parameters: `batchbench run {probe.name}` first")
    return folder, manifest


# -- tables ------------------------------------------------------------------------------------------------

FIRST = 12  # metrics shown unless all are asked for


def _shown(analysis: "Analysis", *, every: bool) -> str:
    coverage = analysis.coverage
    share = f"{_percent(coverage.detected, coverage.asked)}"
    shown = [name for name in analysis.metrics if name not in analysis.aliases]
    names = [*analysis.headline, *(name for name in shown if name not in analysis.headline)]
    rows = [["METRIC", "ESTIMATE", "95 % INTERVAL", "MARK", "COVERAGE"]]
    for name in names if every else names[:FIRST]:
        value = analysis.metrics.get(name)
        if value is None:
            continue
        interval = NOTHING if value.low is None else f"{_number(value.low)} … {_number(value.high)}"
        rows.append([name, _number(value.estimate), interval, value.mark or NOTHING, share])
    lines = [f"{analysis.probe}, {analysis.origin.model}", *(f"  {stamp}" for stamp in analysis.stamps)]
    lines += ["", output.table(rows)]
    if not every and len(names) > FIRST:
        lines.append(f"and {len(names) - FIRST} more: --all, or --json")
    lines += [
        "",
        f"{coverage.asked:,} asked, {coverage.attempts:,} came back, {coverage.detected:,} readable; "
        f"{coverage.items_detected:,} of {coverage.items:,} items have a readable answer",
        *([f"repeated answers agree in {analysis.agreement:.1%} of pairs"] if analysis.agreement is not None else []),
        "",
        output.table(_missing(analysis, every=every)),
        *(f"note: {note}" for note in analysis.notes),
        "",
    ]
    return "\n".join(lines)


def _missing(analysis: "Analysis", *, every: bool) -> list[list[str]]:
    kinds = ("refused", "filtered", "truncated", "failed", "absent", "undetected")
    rows = [["GROUP", "ASKED", *(kind.upper() for kind in kinds)]]
    for group in analysis.missing if every else analysis.missing[:FIRST]:
        shares = [_percent(getattr(group, kind), group.asked) for kind in kinds]
        rows.append([f"{group.stratum} = {group.group}", f"{group.asked:,}", *shares])
    if not every and len(analysis.missing) > FIRST:
        rows.append([f"and {len(analysis.missing) - FIRST} more", *[""] * (len(rows[0]) - 1)])
    return rows


def _compared(comparison: "Comparison") -> str:
    rows = [["DIFFERENCE", "ESTIMATE", "95 % INTERVAL", "P", "P (HOLM)"]]
    for name, value in comparison.differences.items():
        if value.p is not None:
            interval = NOTHING if value.low is None else f"{_number(value.low)} … {_number(value.high)}"
            rows.append([name, _number(value.estimate), interval, f"{value.p:.2g}", f"{value.p_holm:.2g}"])
    agreement = NOTHING if comparison.agreement is None else f"{comparison.agreement:.1%}"
    return "\n".join(
        [
            f"{comparison.probe}, {comparison.first} minus {comparison.second}: {comparison.items:,} common items, "
            f"{agreement} of common answers agree",
            *(f"  {stamp}" for stamp in comparison.stamps),
            "",
            output.table(rows),
            "",
        ]
    )


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4f}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else NOTHING
