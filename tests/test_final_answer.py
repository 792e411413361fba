"""Answers without reasoning and without decoration."""

import polars as pl
import pytest

from batchbench.probes.kit.final_answer import final_answer, folded, normalized, reasoning


def read(text: str | None) -> tuple[str | None, str | None]:
    frame = pl.DataFrame({"text": [text, "no markers"]}, {"text": pl.String})
    found = frame.select(final_answer(pl.col("text")).alias("answer"), reasoning(pl.col("text")).alias("reasoning"))
    assert found.row(1) == ("no markers", None)
    answer, kind = found.row(0)
    return (None if answer is None else answer.strip(), kind)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>Is it (a)?</think>(b)", "(b)"),
        ("<THINK>\nIs it (a)?\n</THINK>\n\n(b)", "(b)"),
        ('<thinking budget="low">(a)</thinking>(b)', "(b)"),
        ("<thought>(a)</thought>(b)", "(b)"),
        ("<reasoning>(a)</reasoning>(b)", "(b)"),
        ("<reflection>(a)</reflection>(b)", "(b)"),
        ("<scratchpad>(a)</scratchpad>(b)", "(b)"),
        ("<seed:think>(a)</seed:think>(b)", "(b)"),
        ("[THINK](a)[/THINK](b)", "(b)"),
        ("◁think▷(a)◁/think▷(b)", "(b)"),
        ("<|begin_of_thought|>(a)<|end_of_thought|>\n<|begin_of_solution|>(b)<|end_of_solution|>", "(b)"),
        ("<|START_THINKING|>(a)<|END_THINKING|><|START_RESPONSE|>(b)<|END_RESPONSE|>", "(b)"),
        ("<|channel>thought\n(a)<channel|>(b)", "(b)"),
        ("Thinking...\nMaybe (a).\n...done thinking.\n\n(b)", "(b)"),
        ("Here is my thought process:\n(a)?\nHere is my response:\n(b)", "(b)"),
        ("Here are my reasoning steps:\n(a)?\n[BEGIN FINAL RESPONSE]\n(b)\n[END FINAL RESPONSE]", "(b)"),
        ("Perhaps (a).\n</think>\n(b)", "(b)"),
        ("<think>I close with </think> at the end: (a)</think>(b)", "(b)"),
        ("<think>one (a)</think>or<think>two (c)</think>(b)", "(b)"),
        ("(b)\n<think>Was that right?</think>\n", "(b)"),
        ("<think>(a)</think><answer>(b)</answer>", "(b)"),
        ("<think>(a)</think>(b)<|im_end|>\n<|im_start|>user\nAnd (c)?", "(b)"),
        ("<|channel|>analysis<|message|>(a)?<|end|><|start|>assistant<|channel|>final<|message|>(b)<|return|>", "(b)"),
        ("<|channel|>analysis<|message|>(a)<|end|><|channel|>final <|constrain|>json<|message|>(b)", "(b)"),
        ("analysisThe user asks. (a)?assistantfinal(b)", "(b)"),
        ("analysis\n\nWe need (a)?\n\nassistant\n\nfinal\n\n(b)", "(b)"),
        ("We need (a).assistantfinal(b)", "(b)"),
    ],
)
def test_closed_reasoning_is_removed(text: str, answer: str) -> None:
    assert read(text) == (answer, "closed")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>Is it (a)? I", None),
        ("<think", None),
        ("<Thinking>\n(a) seems", None),
        ("[THINK]Is it (a)?", None),
        ("(b)\n\n<think>Was that", "(b)"),
        ("<think>(a)</think><think>(b)", None),
        ("<|channel|>analysis<|message|>Choose (a).", None),
        ("<|start|>assistant<|channel|>analysis<|message|>Choose (a).<|end|>", None),
        ("analysisWe choose (a). The user", None),
        ("thought\nThe user asks (a)", None),
    ],
)
def test_unclosed_reasoning_is_no_answer(text: str, answer: str | None) -> None:
    assert read(text) == (answer, "unclosed")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (None, None),
        ("", ""),
        ("(b) Women", "(b) Women"),
        ("Analysis: (b)", "Analysis: (b)"),
        ("I think, therefore [b].", "I think, therefore [b]."),
        ("1 < 2 and <b>bold</b>", "1 < 2 and <b>bold</b>"),
        ("<think>\n\n</think>\n\n(b)", "(b)"),
        ("<think/>(b)", "(b)"),
        ("I weighed (a).\n<answer>\n(b)\n</answer>", "(b)"),
        ("<final_answer>(b)", "(b)"),
        ("So: <Answer>(b)</Answer> as asked", "(b)"),
        ("<answer>(a)</answer> or <answer>(b)</answer>", "(a)  or  (b)"),
        ("(b)</s>", "(b)"),
        ("(b)<|eot_id|><|start_header_id|>user", "(b)"),
    ],
)
def test_other_texts_contain_no_reasoning(text: str | None, answer: str | None) -> None:
    assert read(text) == (answer, None)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("(C) Neither", "(c) neither"),
        ("（Ｃ） Neither", "(c) neither"),
        ("**B. She**", "b. she"),
        ("__Both__ and _she_, not snake_case", "both and she, not snake_case"),
        ("### Answer\n\n`c`", "answer\n\nc"),
        ('```json\n{"answer": "c"}\n```', '\n{"answer": "c"}\n'),
        ("$\\boxed{\\text{(b)}}$", "(b)"),
        ("\\(\\boxed{C}\\)", "c"),
        ("You’ve been “selected”", 'you\'ve been "selected"'),
        ("You\xa0have\u200b been\u202fselected", "you have been selected"),
        ("~~(a)~~ > (b)", "(a) > (b)"),
        ("> (b)\r\nWomen", "(b)\nwomen"),
        ("\u24d2 \U0001d402", "c c"),
    ],
)
def test_decoration_and_spelling_variants_are_removed(text: str, plain: str) -> None:
    assert pl.DataFrame({"text": [text]}).select(normalized(pl.col("text"))).item() == plain


def test_white_space_is_folded() -> None:
    assert pl.DataFrame({"text": [" you have\n\n been \t"]}).select(folded(pl.col("text"))).item() == "you have been"
