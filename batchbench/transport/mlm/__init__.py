"""Masked language models on this machine: an optional extra, imported only when such a model is asked."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from batchbench.errors import UsageError

INSTALL = "pip install 'batchbench[mlm]'"


def is_onnx(model: str) -> bool:
    """Whether a model is a folder for onnxruntime; anything else is left to transformers."""
    return (Path(model) / "model.onnx").is_file()


def check_installed(model: str) -> None:
    """Refuse a model whose runtime is not here, with the command that brings it."""
    needed = ("onnxruntime", "tokenizers") if is_onnx(model) else ("torch", "transformers")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UsageError(f"mlm:{model} needs {' and '.join(missing)}: {INSTALL}")


def fingerprint(model: str) -> str:
    """What tells a model's files from others under the same name; empty if there are none here.

    For a folder it is a digest of all of them but hidden ones and prose, for a name the version that was fetched last.
    """
    folder = Path(model)
    if not folder.is_dir():
        return _fetched(model)
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if not path.name.startswith(".") and path.suffix != ".md":
            about = path.stat()
            whole.update(f"{path.name} {_sha256(path, about.st_size, about.st_mtime_ns)}\n".encode())
    return whole.hexdigest()


def _fetched(name: str) -> str:
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(name, "config.json")
    except ValueError:  # a folder that is gone, and no name at all
        return ""
    return Path(config).parent.name if isinstance(config, str) else ""


@cache
def _sha256(path: Path, size: int, changed: int) -> str:
    """The digest of a file, read once for all runs of a command as long as it looks unchanged."""
    del size, changed
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
