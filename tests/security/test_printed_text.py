"""Answers are data: a hostile answer moves no cursor, runs no script, and becomes no formula."""

import contextlib
import csv
import io
import json
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench import cli
from batchbench.core.text import sanitize, sanitize_json
from batchbench.errors import BatchbenchError
from batchbench.report import tables
from batchbench.report.tables import Table
from batchbench.transport.client import Client
from tests.test_client import against, answering

CONTROLS = [chr(code) for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))]
HIDING = [
    "\u202a",
    "\u202e",
    "\u2066",
    "\u2069",
    "\u200b",
    "\u200f",
    "\u2028",
    "\u2029",
    "\ufeff",
    "\u00ad",
    "\U000e0041",
    "\xa0",
]
TERMINAL = ["\x1b[2J", "\x1b[31mred", "\x1b]0;title\x07", "\x1b]8;;http://evil.example\x07x", "\x1b]52;c;ZXZpbA==\x07"]
TERMINAL += [
    "\x1bP1$tx\x1b\\",
    "\x1b_x\x1b\\",
    "\x1b^x\x1b\\",
    "\x1bXx\x1b\\",
    "\x9b2J",
    "[red]x[/red]",
    "a\rb",
    "a\bb",
]
PAGE = ["</script><script>alert(1)</script>", "<!--", "-->", "<img src=x onerror=alert(1)>", "javascript:alert(1)"]
PAGE += [
    "{{7*7}}",
    "${7*7}",
    "<svg onload=alert(1)>",
    "&lt;b&gt;",
    "]]>",
    "<?x?>",
    "\"onclick='x'",
    "</pre></textarea>",
]
FORMULAS = [
    "=1+1",
    "+1",
    "-1+1",
    "@SUM(A1)",
    " =1",
    "\xa0=1",
    "\t=1",
    "\r=1",
    "a\n=1",
    "a\r\n=1",
    "\uff1d1",
    "\uff0b1",
    "\uff20x",
]
FORMULAS += ['=cmd|"/C calc"!A0', "|calc", "%0A=1", "'=1", ",=1", '","=1', "\n\n  =1"]
PAPER = [
    "\\input{/etc/passwd}",
    "\\write18{rm}",
    "$x$",
    "100 % & # _ ^ ~ { }",
    "| a | b |",
    "`code`",
    "[a](http://evil.example)",
]
PAPER += ["![x](http://evil.example)", "**b**", "# h", "$$", "a & b \\\\"]
CORPUS = [*[f"he{letter}she" for letter in (*CONTROLS, *HIDING)], *TERMINAL, *PAGE, *FORMULAS, *PAPER]
NAME = "x\x1b[2J</script><script>alert(9)</script>\u202e=1|\\input{y}"


class Story(NamedTuple):
    """A home with hostile answers, and what the commands printed about it."""

    home: Path
    said: dict[str, str]
    ids: dict[str, str]  # text -> id of the request that it answers


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    home = tmp_path_factory.mktemp("nasty") / "a [1]* ho?me"  # must not be taken for a pattern
    model = ["gest", "--set", "data=sample", "--model", f"openai:{NAME}"]

    def say(*words: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main([*words, "--home", str(home)])
        assert code == 0, err.getvalue()
        return out.getvalue() + err.getvalue()

    said = {"export": say("export", *model, "--price", "1,1", "-o", str(home / "out"))}
    ids, lines = {}, []
    (file,) = (home / "out").iterdir()
    requests = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(requests) >= len(CORPUS)
    for place, request in enumerate(requests):
        text = CORPUS[place % len(CORPUS)]
        ids[text] = request["custom_id"]
        body = {"model": text, "choices": [{"message": {"content": f"{text} (a)"}, "finish_reason": text}]}
        body["usage"] = {"prompt_tokens": 1, "completion_tokens": 1}  # type: ignore[assignment]
        lines.append(json.dumps({"custom_id": request["custom_id"], "response": {"status_code": 200, "body": body}}))
    (home / "results.jsonl").write_text("\n".join(lines))
    said["import"] = say("import", str(home / "results.jsonl"))
    said["analyze"] = say("analyze", *model, "--replicates", "20", "--all")
    said["report"] = say("report", "--title", NAME)
    said["status"], said["audit"] = say("status"), say("audit")
    return Story(home, said, ids)


def harmless(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


def test_no_command_prints_terminal_control_sequences(story: Story) -> None:
    assert {command for command, said in story.said.items() if not harmless(said)} == set()


@pytest.mark.parametrize("text", [*TERMINAL, *HIDING, *CONTROLS[::6]], ids=ascii)
def test_explain_shows_an_answer_safely_and_as_json_exactly(
    story: Story, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = next(custom_id for found, custom_id in story.ids.items() if text in found)
    answered = next(found for found in story.ids if text in found)
    assert cli.main(["explain", asked, "--home", str(story.home)]) == 0
    assert harmless(capsys.readouterr().out)
    assert cli.main(["explain", asked, "--json", "--home", str(story.home)]) == 0
    document = capsys.readouterr().out
    assert harmless(document)
    assert json.loads(document)["answer"]["text"] == f"{answered} (a)"


class Page(HTMLParser):
    """The elements that a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_no_answer_adds_an_element_to_the_report(story: Story) -> None:
    text = (story.home / "report.html").read_text()
    page = Page(text)
    names = [name for name, _ in page.tags]
    assert (names.count("script"), names.count("style")) == (1, 1)
    assert not {"img", "iframe", "object", "embed", "link", "base", "form", "foreignobject"} & set(names)
    for _, attributes in page.tags:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "srcset", "style", "action")
        ]
        address = attributes.get("href") or attributes.get("xlink:href") or "#"
        assert address.startswith(("#", "data:"))
    assert "&lt;script&gt;alert(9)&lt;/script&gt;" in text
    assert harmless(text)


def test_no_file_of_the_report_holds_a_formula_a_script_or_a_link(story: Story) -> None:
    files = [path for path in (story.home / "report-files").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".csv", ".md", ".tex", ".svg", ".json"}
    for path in files:
        assert path.parent in (story.home / "report-files", story.home / "report-files" / "figures")
        assert re.fullmatch(r"[A-Za-z0-9_-]+\.\w+", path.name)
        text = path.read_text() if path.suffix != ".png" else ""
        assert harmless(text.replace("\r\n", "\n")), path
        if path.suffix == ".svg":
            for element in ElementTree.fromstring(text).iter():  # noqa: S314 - our own
                assert not element.tag.endswith(("script", "foreignObject", "image"))
                assert not [name for name in element.attrib if name.startswith("on") or name.endswith("href")]
        if path.suffix == ".csv":
            for row in csv.reader(io.StringIO(text, newline="")):
                assert not [cell for cell in row if computed(cell)], path
        if path.suffix == ".tex":
            assert not re.search(r"\\(input|write|include|def|catcode)", text)
        if path.suffix == ".md":
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()}) == 1
            assert not re.search(r"(?<!\\)[<`\[]", text)


def computed(cell: str) -> bool:
    """Whether a spreadsheet might compute a cell; a number is not a formula."""
    if re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell):
        return False
    return any(
        line.strip().startswith(("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"))
        for line in cell.split("\n")
    )


@given(st.sampled_from(CORPUS) | st.text())
def test_no_cell_is_a_formula(text: str) -> None:
    written = tables.as_csv(
        Table(name="t", about="", columns=["a", "b"], rows=[[text, f" {text}"], [f"x\n{text}", 1.5]])
    )
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert [len(row) for row in rows] == [2, 2, 2]
    assert not [cell for row in rows[1:] for cell in row if computed(cell)]


@given(st.sampled_from(CORPUS) | st.text())
def test_markdown_and_latex_keep_their_shape(text: str) -> None:
    table = Table(name="t", about="", columns=["a", "b"], rows=[[text, "x"]])
    (line,) = tables.as_markdown(table).splitlines()[2:]
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
    row = tables.as_latex(table).splitlines()[5]
    assert len(re.findall(r"(?<!\\)&", row)) == 1
    assert row.endswith(" & x \\\\")


@given(st.text() | st.sampled_from(CORPUS))
def test_sanitized_text_has_no_control_characters(text: str) -> None:
    shown = sanitize(text)
    assert not [letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in "\n\t"]  # fmt: skip  # noqa: E501
    document = json.dumps({"text": text}, ensure_ascii=False)
    assert harmless(sanitize_json(document))
    assert json.loads(sanitize_json(document)) == {"text": text}


def test_a_complaint_of_a_provider_is_cut_and_made_safe(capsys: pytest.CaptureFixture[str]) -> None:
    async def act(api: Client, _: list[str]) -> None:
        with pytest.raises(BatchbenchError) as error:
            await api.get("/x")
        from batchbench.cli.terminal import fail

        fail(error.value, json=False)

    message = json.dumps({"error": {"message": "\x1b[2J" + "x" * 60_000, "type": "y" * 5000}})
    anyio.run(against, answering(401, message), act)
    said = capsys.readouterr().err
    assert harmless(said)
    assert len(said) < 2500
    assert len(said.splitlines()) == 1
