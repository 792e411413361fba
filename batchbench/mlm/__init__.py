"""Masked language models on this machine: an optional extra, imported only when such a model is asked."""

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
