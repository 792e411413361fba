"""Inputs for the fuzz tests: small valid samples, and mutations of them.

`BATCHBENCH_FUZZ_CORPUS=FOLDER` adds every line of the .jsonl files there to the samples of result lines.
`BATCHBENCH_FUZZ=N` runs N examples of each test; without it, a test runs few examples, and many with `-m full`.
"""

import inspect
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUICK, LONG = 50, 400
EFFORTS = [int(os.environ.get("BATCHBENCH_FUZZ", QUICK)), pytest.param(LONG, marks=pytest.mark.full)]
HARD = [
    b"null", b"-1", b"0", b"1e999", b"NaN", b"18446744073709551616", b"-9223372036854775809", b"9" * 5000, b"true",
    b'""', b"[]", b"{}", b"[" * 3000, b'{"a":' * 3000, b'"\\ud83d"', b'"\\u0000"', b'"\\u202e"', b"\xff\xfe",
    b"\xef\xbb\xbf", b"\x00", b"\n", b"\r\n", b"\xe2\x80\xa8", b'"', b"\\", b'"../../../etc/passwd"', b"0.1", b"1e308",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(
        [2**63, 2**64, -(2**63) - 1, 1e308, "NaN", "../x", "\ud800", "\u202e",
         "0001-01-01T00:00:00", "9999-12-31T23:59:59Z"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def fuzz(**strategies: "st.SearchStrategy[Any]") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like hypothesis's `given`, but as a quick test and a long one, together with other parameters and fixtures."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(effort: int, **fixed: Any) -> None:
            @settings(max_examples=effort, suppress_health_check=[*HealthCheck])
            @given(**strategies)
            def example(**drawn: Any) -> None:
                check(**fixed, **drawn)

            example()

        others = [p for name, p in inspect.signature(check).parameters.items() if name not in strategies]
        effort = inspect.Parameter("effort", inspect.Parameter.KEYWORD_ONLY)
        test.__signature__ = inspect.Signature([*others, effort])  # type: ignore[attr-defined]
        test.__name__, test.__doc__ = check.__name__, check.__doc__
        decorated: Callable[..., None] = pytest.mark.parametrize("effort", EFFORTS)(test)
        return decorated

    return decorate


def corpus(*names: str) -> list[bytes]:
    """Lines of the files in BATCHBENCH_FUZZ_CORPUS whose name contains one of `names`."""
    folder = os.environ.get("BATCHBENCH_FUZZ_CORPUS")
    files = sorted(Path(folder).glob("*.jsonl")) if folder else []
    return [
        line for file in files if any(map(file.name.count, names)) for line in file.read_bytes().split(b"\n") if line
    ]


def mutants(samples: Sequence[bytes | object]) -> "st.SearchStrategy[bytes]":
    """A sample as it is, with bytes changed, with values changed, or random bytes."""
    texts = [sample if isinstance(sample, bytes) else json.dumps(sample).encode() for sample in samples]
    documents = [document for text in texts if (document := _parsed(text)) is not None]
    kinds = [st.sampled_from(texts), _cut(texts), st.binary(max_size=200)]
    if documents:
        kinds += [_reshaped(documents), _reshaped(documents), JSON.map(_encoded)]
    return st.one_of(kinds)


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()


@st.composite
def _cut(draw: st.DrawFn, texts: Sequence[bytes]) -> bytes:
    """A sample with pieces removed, repeated or replaced."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.sampled_from([0, 1, 1, 2, 5, 20, 100])))
        piece = draw(st.sampled_from([b"", *HARD, text[start:stop] * 2]) | st.binary(max_size=4))
        text = text[:start] + piece + text[stop:]
    return text


@st.composite
def _reshaped(draw: st.DrawFn, documents: Sequence[object]) -> bytes:
    """A sample document with some values replaced, removed or moved to another name."""
    document = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for _ in range(draw(st.integers(1, 3))):
        node = document
        while isinstance(node, dict | list) and node:
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            key = draw(st.sampled_from(keys))
            inner = node[key]
            if not (isinstance(inner, dict | list) and inner) or draw(st.integers(0, 3)) == 0:
                match draw(st.sampled_from(["replace", "replace", "remove", "twice"])):
                    case "replace":
                        node[key] = draw(JSON)
                    case "remove":
                        del node[key]
                    case "twice" if isinstance(node, list):
                        node.append(inner)
                    case "twice" if isinstance(node, dict):
                        node[draw(st.text(max_size=8))] = inner
                break
            node = inner
    return _encoded(document)
