"""Small masked models like BERT and RoBERTa, with random weights and tokenizers trained in the test.

With random weights, all words have about the same probability, and there is little to compare. So the words of the
probes get a higher output bias, and the weights have a large deviation so that sentences differ.
"""

import json
import warnings
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.processors import RobertaProcessing
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.2,
}
VOCABULARY = 2500


def bert(
    folder: Path, texts: list[str], likely: dict[str, float], size: dict[str, float] = SIZE, vocabulary: int = 0
) -> Path:
    """A BERT with lower-case word pieces; its vocabulary is padded to the size `vocabulary` with unused tokens."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary or VOCABULARY, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    known = tokenizer.get_vocab()
    unused = {f"[unused{number}]": number for number in range(len(known), vocabulary)}
    tokenizer.model = models.WordPiece(known | unused, unk_token="[UNK]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(word, tokenizer.token_to_id(word)) for word in ("[CLS]", "[SEP]")],
    )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=128, **{f"{k}_token": v for k, v in names.items()}
    )
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(fast), max_position_embeddings=128, pad_token_id=fast.pad_token_id, **size)
    model = BertForMaskedLM(config).eval()
    _raise_bias(model.cls.predictions.bias, fast, likely)
    return _saved(folder, model, fast)


def roberta(folder: Path, texts: list[str], likely: dict[str, float]) -> Path:
    """A RoBERTa with byte pairs, in which a word after a space is another token."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(word, tokenizer.token_to_id(word)) for word in ("</s>", "<s>")]
    tokenizer.post_processor = RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=128,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
    )
    torch.manual_seed(1)
    config = RobertaConfig(vocab_size=len(fast), max_position_embeddings=130, pad_token_id=fast.pad_token_id, **SIZE)
    model = RobertaForMaskedLM(config).eval()
    _raise_bias(model.lm_head.bias, fast, likely | {f" {word}": start for word, start in likely.items()})
    return _saved(folder, model, fast)


def onnx(folder: Path, source: Path) -> Path:
    """The model in `source`, exported for onnxruntime."""
    from transformers import AutoModelForMaskedLM

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForMaskedLM.from_pretrained(source).eval()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    folder.mkdir(parents=True, exist_ok=True)
    example = torch.ones((2, 9), dtype=torch.long)
    names = ["input_ids", "attention_mask"]
    with warnings.catch_warnings():  # the exporter warns about the model's code
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits(),
            (example, example),
            str(folder / "model.onnx"),
            input_names=names,
            output_names=["logits"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "logits"]},
            dynamo=False,
        )
    for name in ("tokenizer.json", "config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    return folder


def _raise_bias(bias: torch.Tensor, tokenizer: PreTrainedTokenizerFast, words: dict[str, float]) -> None:
    with torch.no_grad():
        for word, start in words.items():
            pieces = tokenizer(word, add_special_tokens=False)["input_ids"]
            if len(pieces) == 1:
                bias[pieces[0]] += start


def _saved(folder: Path, model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == len(tokenizer)
    return folder
