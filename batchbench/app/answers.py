"""List the answers of a run, draw some of them for people to label, and compare the readings with people's labels."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from batchbench.analyze import check_sheet
from batchbench.analyze.check_sheet import SheetRow
from batchbench.analyze.human_check import (
    CheckedFile,
    HumanCheck,
    Sample,
    Stratum,
    draw,
    evaluate,
    read_samples,
    shuffled,
    write_human_check,
    write_sample,
)
from batchbench.analyze.labelled_answers import bound, label_answers, label_expression
from batchbench.app.analyze import find_manifest, provider_of_source
from batchbench.app.plan import parameters
from batchbench.app.requests import AnswersRequest, Voice
from batchbench.compile.manifest import checked_shards
from batchbench.core.store import Store, content
from batchbench.errors import DataError, UsageError, unknown
from batchbench.probes import load_probe
from batchbench.probes.kit.probe import Params, Probe
from batchbench.runs.folder import check_prompts, find_run, read_run, read_state
from batchbench.runs.journal import RunState
from batchbench.runs.results import ANSWERS, answer_files, read_answers

LETTERS = "abcdef"  # of options that a prompt offers
UNREADABLE = pl.col("label").is_null() | pl.col("careful").is_null()


class RunAnswers(NamedTuple):
    """The stored answers of one run."""

    probe: Probe[Params]
    params: Params
    folder: Path
    state: RunState
    rows: pl.LazyFrame  # the prompts and their design
    answers: pl.LazyFrame  # with the nonce of the batch of each
    asked: pl.Expr  # whether an answer belongs to the items and repetitions that were last asked for
    model: str
    stamps: list[str]  # warnings that every output has to show


class ListedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. A label of None: that reading cannot read it."""

    id: str  # its custom id, for `batchbench explain`
    outcome: str
    label: str | None
    careful: str | None
    prompt: str
    text: str | None
    error: str | None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of a run; `matching` counts also those that are not listed."""

    probe: str
    model: str
    stamps: list[str]
    stored: int
    matching: int
    outcomes: dict[str, int]  # of the matching answers
    answers: list[ListedAnswer]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that was drawn, and the files for the person who labels it."""

    file: str
    instructions: str
    sample: str  # in the folder of the run
    drawn: int
    population: int


def list_answers(request: AnswersRequest, store: Store, voice: Voice) -> Listing:
    """The first answers of a run that have the requested label, or that cannot be read."""
    if request.out is not None:
        raise UsageError("-o names the file to label: it goes with --check N")
    run = find_answers(request, store, voice)
    wanted = [UNREADABLE] if request.unreadable else []
    if request.label is not None:
        if request.label not in run.probe.labels:
            raise unknown(f"label of {run.probe.name}", request.label, run.probe.labels)
        wanted.append((pl.col("label") == request.label) | (pl.col("careful") == request.label))
    with voice.progress(f"reading answers to {run.probe.name}"):
        matching = _labelled(run).filter(*wanted).select("id", "rep", "outcome").collect(engine="streaming")
        limit = matching.height if request.limit == "all" else request.limit
        shown = _details(run, matching.select("id", "rep").bottom_k(limit, by=["id", "rep"]))
    return Listing(
        probe=run.probe.name,
        model=run.model,
        stamps=run.stamps,
        stored=run.state.answered(),
        matching=matching.height,
        outcomes=dict(matching.group_by("outcome").len().sort("outcome").cast({"outcome": pl.String}).rows()),
        answers=[
            ListedAnswer(id=row.pop("custom_id"), **row)
            for row in shown.select("custom_id", *ListedAnswer.__struct_fields__[1:]).iter_rows(named=True)
        ],
    )


def write_check(request: AnswersRequest, store: Store, voice: Voice) -> Written:
    """Draw answers from a run, and write them to a file for a person to label."""
    assert request.check is not None  # noqa: S101 - the caller has checked this
    if request.unreadable or request.label is not None:
        raise UsageError("--check draws from all answers: leave out --unreadable and --label")
    run = find_answers(request, store, voice)
    out = request.out or store.home / f"check-{run.probe.name}-{run.folder.name}.csv"
    check_sheet.check_suffix(out)
    _refuse_numbers(run)
    with voice.progress(f"reading answers to {run.probe.name}"):
        has_text = (pl.col("text").str.strip_chars() != "").fill_null(value=False).alias("has_text")
        labelled = _labelled(run, has_text).collect(engine="streaming")
        readable = labelled.filter("has_text")
        if readable.height < 2:
            raise UsageError(f"{run.folder} has {readable.height} answers with text: there is nothing to check")
        drawn = draw(readable, request.check, request.seed)
        rows = shuffled(_details(run, pl.concat(chosen for _, _, chosen in drawn)), request.seed)
    ids = {(row, rep): custom_id for row, rep, custom_id in rows.select("id", "rep", "custom_id").rows()}
    sample = Sample(
        probe=run.probe.name,
        run=run.state.run,
        size=request.check,
        seed=request.seed,
        stored=run.state.answered(),
        rereads=run.state.rereads(),
        without_text=labelled.height - readable.height,
        strata=[
            Stratum(pairs=pairs, answers=count, drawn=[ids[pair] for pair in chosen.rows()])
            for pairs, count, chosen in drawn
        ],
    )
    kept = write_sample(sample, run.folder, store)
    sheet = [
        SheetRow(id=custom_id, prompt=prompt, answer=text)
        for custom_id, prompt, text in rows.select("custom_id", "prompt", "text").rows()
    ]
    name = f"{run.folder.parent.name}/{run.folder.name} {run.state.run}"
    text = check_sheet.instructions(out, run.probe.name, name, run.probe.labels, letters=bool(_letters(run, rows)))
    beside = check_sheet.write_sheet(sheet, out, text, store)
    return Written(
        file=str(out), instructions=str(beside), sample=str(kept), drawn=len(sheet), population=sample.population
    )


def read_check(request: AnswersRequest, store: Store, voice: Voice) -> HumanCheck:
    """Compare both readings with the labels in one or two files, and keep the result in the run's folder."""
    if request.check is not None or request.unreadable or request.label is not None or request.out is not None:
        raise UsageError("--checked reads labels: leave out --check, --unreadable, --label and -o")
    if len(request.checked) > 2:
        raise UsageError("--checked takes the labels of one or two people: name at most two files")
    run = find_answers(request, store, voice)
    sheets = [(path, check_sheet.read_sheet(path)) for path in request.checked]
    sample = _sample_of(sheets, run)
    with voice.progress(f"reading answers to {run.probe.name}"):
        rows = _drawn(run, sample)
        letters = _letters(run, rows)
    read = {one: (label, careful) for one, label, careful in rows.select("custom_id", "label", "careful").rows()}
    checked: list[tuple[CheckedFile, dict[str, str]]] = []
    for path, sheet in sheets:
        labels = check_sheet.labels_of(path, sheet, run.probe.labels, letters)
        if not labels:
            raise UsageError(f"{path} has no labels yet: fill in its column `label`")
        digest = hashlib.sha256(content(path)).hexdigest()
        if any(digest == other.sha256 for other, _ in checked):
            raise UsageError(f"{path} has the same content as the other file: name the labels of two people")
        checked.append((CheckedFile(file=_name(path, request.checked), sha256=digest, labelled=len(labels)), labels))
    accuracies, agreement = evaluate(sample, read, checked)
    found = HumanCheck(
        probe=run.probe.name,
        model=run.model,
        stamps=run.stamps,
        version=run.probe.version,
        careful_version=run.probe.careful_version,
        run=run.state.run,
        rereads=run.state.rereads(),
        population=sample.population,
        drawn=len(sample.ids),
        seed=sample.seed,
        files=[file for file, _ in checked],
        accuracies=accuracies,
        agreement=agreement,
        notes=_notes(sample, checked, run),
    )
    write_human_check(found, run.folder, store)
    return found


def find_answers(request: AnswersRequest, store: Store, voice: Voice) -> RunAnswers:
    """The answers of a run, by probe and model."""
    probe = load_probe(request.probe)
    label_expression(probe)  # raises UsageError before anything is read
    (params,) = parameters([probe], request.params, provider_of_source(request.model))
    probe = bound(probe, params)
    manifest_folder, manifest = find_manifest(probe, params, store, voice)
    folder = find_run(store, manifest_folder.name, request.model)
    state = read_state(folder)
    check_prompts(state, manifest_folder, manifest)
    if state.asked is None:
        raise UsageError(f"nothing has been asked in {folder} yet: run `batchbench run {probe.name}` first")
    rows = pl.scan_parquet(checked_shards(manifest_folder, manifest), glob=False)
    asked = (pl.col("id") < state.asked.items * manifest.variants) & (pl.col("rep") < state.asked.repetitions)
    target = read_run(folder / "run.json").target
    stamps = [*(["EMULATED"] if target.emulated else []), *(["SAMPLE DATA"] if manifest.sample_data else [])]
    return RunAnswers(probe, params, folder, state, rows, _stored(folder, state), asked, target.name, stamps)


def _stored(folder: Path, state: RunState) -> pl.LazyFrame:
    """Every stored answer, with the nonce of its batch."""
    read_answers(folder, state)  # raises DataError if a file is damaged
    parts = [(batch.nonce, answer_files(folder, batch)) for batch in state.batches.values()]
    frames = [pl.scan_parquet(files, glob=False).with_columns(nonce=pl.lit(nonce)) for nonce, files in parts if files]
    return pl.concat(frames, how="diagonal") if frames else pl.LazyFrame(schema={**ANSWERS, "nonce": pl.String})


def all_answers(run: RunAnswers) -> pl.DataFrame:
    """Every answer with its custom id, its prompt and design, and both labels, sorted by id and rep."""
    custom_id = pl.concat_str("nonce", "id", "rep", separator="-").alias("custom_id")
    joined = run.answers.with_columns(custom_id).drop("nonce").join(run.rows, on="id")
    kept = [name for name in joined.collect_schema() if name != "outcome"]
    return label_answers(joined, run.probe, *kept).sort("id", "rep").collect()


def _labelled(run: RunAnswers, *keep: pl.Expr) -> pl.LazyFrame:
    """Outcome and both labels of every answer, without its text."""
    answers = run.answers.filter(run.asked).join(run.rows.drop("prompt"), on="id")
    return label_answers(answers, run.probe, "id", "rep", *keep)


def _details(run: RunAnswers, chosen: pl.DataFrame) -> pl.DataFrame:
    """All about the chosen answers, given by id and rep: texts, prompts, labels, custom ids."""
    answers = run.answers.join(chosen.lazy(), on=["id", "rep"], how="semi")
    ids = pl.lit(chosen["id"].unique().implode())
    return all_answers(run._replace(answers=answers, rows=run.rows.filter(pl.col("id").is_in(ids))))


def _drawn(run: RunAnswers, sample: Sample) -> pl.DataFrame:
    """All about the answers of a sample; raises DataError if the run does not have them."""
    numbers = [[int(number) for number in custom_id.split("-")[1:]] for custom_id in sample.ids]
    chosen = pl.DataFrame(numbers, {"id": pl.Int64, "rep": pl.Int64}, orient="row")
    found = _details(run, chosen.cast({"id": pl.UInt32, "rep": pl.UInt16}, strict=False))
    if absent := set(sample.ids) - set(found["custom_id"]):
        raise DataError(f"{run.folder} lacks answers of the sample, such as {min(absent)}: restore it from a backup")
    return found


def _refuse_numbers(run: RunAnswers) -> None:
    """Refuse answers that are probabilities of words: people cannot label them."""
    form = getattr(run.params, "form", "question")
    if form != "question":
        raise UsageError(f"answers with form={form} are numbers, not text: people cannot label them")


def _letters(run: RunAnswers, rows: pl.DataFrame) -> dict[str, dict[str, str]]:
    """The label that the letter of an option stands for, by custom id and letter; empty without such options.

    It is what the reference reading makes of an answer that is only this letter.
    """
    found: dict[str, dict[str, str]] = {}
    for letter in LETTERS:
        for answer in (f"({letter})", letter.upper()):
            asked = rows.lazy().with_columns(text=pl.lit(answer), outcome=pl.lit("answered"))
            read = label_answers(asked, run.probe, "custom_id").filter(pl.col("label").is_not_null()).collect()
            for custom_id, label in read.select("custom_id", "label").rows():
                found.setdefault(custom_id, {})[letter] = label
    return found


def _sample_of(sheets: list[tuple[Path, list[tuple[int, SheetRow]]]], run: RunAnswers) -> Sample:
    """The sample that all files belong to; raises UsageError with the row that does not belong to it."""
    samples = read_samples(run.folder)
    if not samples:
        raise UsageError(f"no sample was drawn from {run.folder}: draw one with --check N")
    ids = {row.id.strip() for _, sheet in sheets for _, row in sheet}
    fitting = [sample for sample in samples if ids <= set(sample.ids)]
    if fitting:
        return min(fitting, key=lambda sample: len(sample.ids))
    nearest = max(samples, key=lambda sample: len(ids & set(sample.ids)))
    for path, sheet in sheets:
        for number, row in sheet:
            custom_id = row.id.strip()
            if not custom_id:
                raise UsageError(f"{path} row {number} has no id: restore it from the file that --check wrote")
            if custom_id.partition("-")[0] not in run.state.batches:
                raise UsageError(f"{path} row {number}: {custom_id} belongs to another run than {run.folder}")
            if custom_id not in nearest.ids:
                raise UsageError(f"{path} row {number}: {custom_id} is not in the sample of the other rows: remove it")
    raise AssertionError("some row is in no sample")


def _name(path: Path, paths: list[Path]) -> str:
    """The name of a file, with its folder if two files have this name."""
    return path.name if [other.name for other in paths].count(path.name) == 1 else str(path)


def _notes(sample: Sample, checked: list[tuple[CheckedFile, dict[str, str]]], run: RunAnswers) -> list[str]:
    notes = []
    for file, labels in checked:
        if left := len(sample.ids) - len(labels):
            notes.append(f"{file.file}: {left:,} of {len(sample.ids):,} answers have no label; they count as not drawn")
        covered = sum(stratum.answers for stratum in sample.strata if any(one in labels for one in stratum.drawn))
        if covered < sample.population:
            notes.append(f"{file.file}: its labels represent {covered / sample.population:.1%} of the answers")
    if sample.without_text:
        notes.append(f"{sample.without_text:,} answers without text were not drawn from")
    if run.state.rereads() != sample.rereads:
        notes.append("answers were read again since the sample was drawn")
    if (more := run.state.answered() - sample.stored) > 0:
        notes.append(f"the run has {more:,} more answers than when the sample was drawn")
    return notes
