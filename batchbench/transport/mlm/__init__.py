"""Masked language models on this machine: an optional extra, imported only when such a model is used."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from batchbench.errors import UsageError

INSTALL = "pip install 'batchbench[mlm]'"


def is_onnx(model: str) -> bool:
    """Whether a model is a folder for onnxruntime; transformers loads all others."""
    return (Path(model) / "model.onnx").is_file()


def check_installed(model: str) -> None:
    """Raise an error if the model's runtime is not installed; the message has the command that installs it."""
    needed = ("onnxruntime", "tokenizers") if is_onnx(model) else ("torch", "transformers")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UsageError(f"mlm:{model} needs {' and '.join(missing)}: {INSTALL}")


def fingerprint(model: str) -> str:
    """An id of a model's files, which change under the same name; empty if they are not on this machine.

    For a folder it is a digest of all files except hidden ones and Markdown, for a name the version in the local cache.
    """
    folder = Path(model)
    if not folder.is_dir():
        return _cached_version(model)
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if not path.name.startswith(".") and path.suffix != ".md":
            status = path.stat()
            digest.update(f"{path.name} {_sha256(path, status.st_size, status.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


def _cached_version(name: str) -> str:
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not a valid name; probably a folder that was removed
        return ""
    return Path(config).parent.name if isinstance(config, str) else ""


@cache
def _sha256(path: Path, size: int, modified: int) -> str:
    """The digest of a file; the cache reads it once per command while its size and time do not change."""
    del size, modified
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
