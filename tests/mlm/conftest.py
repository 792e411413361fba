"""The small models that the tests of this folder share. Without the extra `mlm` these tests are skipped."""

import os
from collections import Counter
from pathlib import Path

import pytest

from batchbench.compile.data_cache import load_table
from batchbench.core.store import Store

# Such small models are slower on many threads than on one; on a busy machine, a hundred times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
PRONOUNS = ("he", "she", "his", "her", "him")


@pytest.fixture(scope="session")
def made(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BERT and a RoBERTa, and both for onnxruntime."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("onnx")
    from tests.mlm import models

    tables = [load_table(Store(home), name, sample=False, note=print)[0] for name in ("wino_bias", "crows_pairs")]
    pairs = Counter(word for name in ("mask1", "mask2") for word in tables[1][name])
    likely = {word: 9.0 for word, _ in pairs.most_common(12)} | dict.fromkeys(PRONOUNS, 10.0)
    texts = [
        *tables[0]["text"],
        *tables[1]["sentence"],
        *pairs,
        *(word for known in likely for word in (known, f" {known}") * 20),
    ]
    folder = tmp_path_factory.mktemp("models")
    found = {
        "bert": models.bert(folder / "bert", texts, likely),
        "roberta": models.roberta(folder / "roberta", texts, likely),
    }
    return found | {f"{name}-onnx": models.onnx(folder / f"{name}-onnx", path) for name, path in found.items()}
