"""The two runtimes of a masked model: transformers, for a name or a folder, and onnxruntime, for a folder.

Both take rows of token ids of any length and return the vocabulary's logits at chosen positions only, because the head
that computes them is most of the work of a small model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from batchbench.errors import BatchbenchError, DataError
from batchbench.transport.mlm import is_onnx

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

MASKS = ("[MASK]", "<mask>")  # mask tokens; an ONNX folder has the one that is in its vocabulary


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The special tokens of a model and its limit."""

    mask: str
    mask_id: int
    pad_id: int
    unknown_id: int | None
    max_tokens: int  # of a sentence


class Runtime(Protocol):
    """A loaded model."""

    vocabulary: Vocabulary

    def encode(self, texts: Sequence[str], *, whole: bool) -> list[list[int]]:
        """The token ids of texts; with `whole`, each has the special tokens around a sentence."""

    def decode(self, token: int) -> str:
        """The text of a token, as LangTest sees it."""

    def logits(self, ids: Ids, attention: Ids, rows: Ids, columns: Ids) -> tuple[Floats, Doubles]:
        """At each position, every token's logit, and the logarithm of the sum of their exponentials.

        The difference of the two is the token's log-probability. The second is a double, for a float loses digits.
        """


def load(model: str) -> Runtime:
    """Load the model of that name or in that folder."""
    try:
        return Onnx(Path(model)) if is_onnx(model) else Torch(model)
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise BatchbenchError(f"mlm:{model} cannot be loaded: {reason[0][:300]}") from None


class Torch:
    """A model of transformers, on the CPU."""

    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoModelForMaskedLM, AutoTokenizer, logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._model: Any = AutoModelForMaskedLM.from_pretrained(model).eval()
        names = [name for name, _ in self._model.named_children()]
        self._body: Any = getattr(self._model, self._model.base_model_prefix)
        # The head is the module beside the body: `cls` in BERT, `lm_head` in RoBERTa; some models have several.
        heads = [name for name in names if name != self._model.base_model_prefix]
        self._head: Any = getattr(self._model, heads[0]) if len(heads) == 1 else None
        tokenizer, config = self._tokenizer, self._model.config
        if tokenizer.mask_token_id is None:
            raise DataError(f"mlm:{model} has no mask token: choose a masked language model")
        # RoBERTa numbers its positions from after the padding token's id, so the first two are not used.
        offset = (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
        self.vocabulary = Vocabulary(
            mask=tokenizer.mask_token,
            mask_id=tokenizer.mask_token_id,
            pad_id=tokenizer.pad_token_id or 0,
            unknown_id=tokenizer.unk_token_id,
            max_tokens=min(tokenizer.model_max_length, config.max_position_embeddings - offset),
        )

        # Use the tokenizer below transformers' wrapper: the wrapper takes longer than a small model.
        self._fast: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._fast is not None:
            self._fast.no_padding()
            self._fast.no_truncation()
        self._decoded: dict[int, str] = {}

    def encode(self, texts: Sequence[str], *, whole: bool) -> list[list[int]]:
        ids: list[list[int]]
        if self._fast is not None:
            ids = [encoding.ids for encoding in self._fast.encode_batch(list(texts), add_special_tokens=whole)]
        else:
            ids = [self._tokenizer(text, add_special_tokens=whole, verbose=False)["input_ids"] for text in texts]
        return ids

    def decode(self, token: int) -> str:
        if token not in self._decoded:
            self._decoded[token] = str(self._tokenizer.decode([token]))
        return self._decoded[token]

    def logits(self, ids: Ids, attention: Ids, rows: Ids, columns: Ids) -> tuple[Floats, Doubles]:
        torch = self._torch
        inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(attention)}
        with torch.inference_mode():
            if self._head is None:
                found = self._model(**inputs).logits[rows, columns].float()
            else:
                found = self._head(self._body(**inputs)[0][rows, columns]).float()
            highest = found.amax(dim=-1)
            sums = (found - highest[:, None]).exp_().sum(dim=-1)
            return found.numpy(), (highest.double() + sums.double().log()).numpy()


class Onnx:
    """A folder with model.onnx and tokenizer.json; the graph includes the head, so positions are chosen afterwards."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads must not use the CPU
        self._session: Any = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {entry.name for entry in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name
        id_of = self._tokenizer.token_to_id
        mask = next((token for token in MASKS if id_of(token) is not None), None)
        if mask is None:
            raise DataError(f"{folder / 'tokenizer.json'} has no mask token: choose a masked language model")
        config = msgspec.json.decode((folder / "config.json").read_bytes()) if (folder / "config.json").exists() else {}
        roberta = "roberta" in str(config.get("model_type", ""))
        pad = next((id_of(token) for token in ("[PAD]", "<pad>") if id_of(token) is not None), 0)
        self.vocabulary = Vocabulary(
            mask=mask,
            mask_id=id_of(mask),
            pad_id=pad,
            unknown_id=next((id_of(token) for token in ("[UNK]", "<unk>") if id_of(token) is not None), None),
            max_tokens=int(config.get("max_position_embeddings", 512)) - (pad + 1 if roberta else 0),
        )

    def encode(self, texts: Sequence[str], *, whole: bool) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=whole)]

    def decode(self, token: int) -> str:
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def logits(self, ids: Ids, attention: Ids, rows: Ids, columns: Ids) -> tuple[Floats, Doubles]:
        inputs = {"input_ids": ids, "attention_mask": attention, "token_type_ids": np.zeros_like(ids)}
        (every,) = self._session.run([self._output], {name: inputs[name] for name in self._inputs})
        found: Floats = every[rows, columns].astype(np.float32)
        highest = found.max(axis=-1)
        sums = np.exp(found - highest[:, None]).sum(axis=-1)
        return found, highest.astype(np.float64) + np.log(sums.astype(np.float64))
