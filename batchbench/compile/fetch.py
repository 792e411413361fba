"""IO: fetch published files, without installing anything.

The files of a package come from an installed copy, or from a wheel downloaded with pip, the pip inside ensurepip, or
uv, whichever the user has, with the user's own index configuration; this module names no host. The installer checks the
pinned sha256, and this module checks it again. A mismatch is final: another installer would fetch the same file.
"""

import hashlib
import importlib.metadata
import importlib.util
import io
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from batchbench.core import keys

MAX_BYTES = 64 * 1024 * 1024  # of a file fetched by link; the largest known file has 1 MB
TIMEOUT = 300  # seconds for one attempt to download a package


class FetchError(Exception):
    """The files could not be fetched; the message is a short reason."""


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """A package on the user's package index, used as an archive of files."""

    package: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"package {self.package} {self.version}"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A file on its publisher's servers; the addresses are tried in order."""

    urls: tuple[str, ...]

    def __str__(self) -> str:
        return self.urls[0]


def members(source: Wheel | Link, paths: Sequence[str], scratch: Path) -> list[bytes]:
    """The contents of the files at `paths` in `source`; writes only into `scratch`."""
    if isinstance(source, Link):
        return [_download(source)]
    return _installed(source, paths) or unpacked(_wheel(source, scratch), paths)


def unpacked(wheel: bytes, paths: Sequence[str]) -> list[bytes]:
    """The contents of the files at `paths` in a wheel."""
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            return [archive.read(path) for path in paths]
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"unexpected package content: {error}") from None


def _installed(source: Wheel, paths: Sequence[str]) -> list[bytes]:
    """The files of an installed copy of the same version, or an empty list; the package is not imported."""
    try:
        package = importlib.metadata.distribution(source.package)
    except importlib.metadata.PackageNotFoundError:
        return []
    files = [Path(str(package.locate_file(path))) for path in paths]
    if package.version != source.version or not all(file.is_file() for file in files):
        return []
    return [file.read_bytes() for file in files]


def _wheel(source: Wheel, scratch: Path) -> bytes:
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n")
    reasons = []
    for command in _download_commands(requirement, scratch):
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=keys.environment()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{Path(command[0]).name}: {type(error).__name__}")
            continue
        for wheel in scratch.rglob("*.whl"):
            content = wheel.read_bytes()
            if hashlib.sha256(content).hexdigest() == source.sha256:
                return content
        if ran.returncode == 0 or "HASHES" in ran.stderr or "Hash mismatch" in ran.stderr:
            raise FetchError("the package index offers a file with another sha256 than the pinned one")
        reasons.append(_last_line(ran.stderr) or f"exit code {ran.returncode}")
    raise FetchError(reasons[-1] if reasons else "neither pip, ensurepip nor uv is there to ask the package index")


def _download_commands(requirement: Path, folder: Path) -> Iterator[list[str]]:
    download = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python"]
    download += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "15"]
    download += ["--require-hashes", "--requirement", str(requirement), "--dest", str(folder)]
    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip", *download]
    if (ensurepip := importlib.util.find_spec("ensurepip")) and ensurepip.origin:
        for wheel in sorted(Path(ensurepip.origin).parent.glob("_bundled/pip-*.whl")):
            yield [sys.executable, f"{wheel}/pip", *download]
    if uv := shutil.which("uv"):
        # uv cannot download wheels into a folder; pip in a temporary environment of uv can.
        pip = [uv, "run", "--no-project", "--quiet", "--python", sys.executable, "--with", "pip", "python", "-m", "pip"]
        yield [*pip, *download]


def _download(link: Link) -> bytes:
    reasons = []
    for url in link.urls:
        try:
            with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - addresses are constants
                content: bytes = response.read(MAX_BYTES + 1)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            reasons.append(str(error.reason) if isinstance(error, urllib.error.URLError) else str(error))
            continue
        if len(content) > MAX_BYTES:
            raise FetchError(f"more than {MAX_BYTES} bytes")
        return content
    raise FetchError(reasons[-1])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
