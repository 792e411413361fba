"""The report without a browser: it is complete, safe, correct and the same every time."""

import csv
import gzip
import io
import json
import re
import shutil
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pytest

from batchbench.core.store import Store
from batchbench.core.text import BIDI, FORMULA
from batchbench.probes import load_probe
from batchbench.report import build_report, gather, style
from batchbench.report.files import files_folder
from batchbench.report.shares import views
from tests.conftest import Run
from tests.report.conftest import HOSTILE, MODELS, PROBES, folder_of, read

VOID = {"meta", "input", "br", "wbr", "col"}


class Page(HTMLParser):
    """A page as a browser reads it: elements in order, and their text. Every element must be closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.source = path.read_text()
        self.feed(self.source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def inside(self, tag: str) -> list[str]:
        return [text for place, text in self.texts if place == tag]

    @property
    def text(self) -> str:
        return "".join(text for place, text in self.texts if place not in ("script", "style"))


# -- one file without any external resource ----------------------------------------------------------------


def test_a_page_loads_nothing_from_elsewhere(page: Path, hostile_page: Path) -> None:
    for found in (Page(page), Page(hostile_page)):
        assert {name for name, _ in found.elements}.isdisjoint(
            {"link", "img", "iframe", "object", "embed", "form", "base", "image", "use", "foreignobject"}
        )
        for name, attributes in found.elements:
            assert not {"src", "srcset", "style", "action", "xlink:href"} & attributes.keys(), name
            assert not [key for key in attributes if key.startswith("on")], name
            address = attributes.get("href") or "#"
            assert address.startswith(("#", "data:text/csv;", "data:application/gzip;")), address
        assert "url(" not in "".join(found.inside("style"))
        assert "@import" not in "".join(found.inside("style"))


def test_the_policy_names_the_only_style_and_the_only_script(page: Path) -> None:
    found = Page(page)
    policy = next(a["content"] for a in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    (sheet,), (script,) = found.inside("style"), found.inside("script")
    assert policy == (
        f"default-src 'none'; style-src {style.hashed(sheet)}; script-src {style.hashed(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    # The policy applies only to elements after it.
    names = [name for name, _ in found.elements]
    assert names.index("meta") < names.index("style") < names.index("script")


def test_the_same_analyses_give_the_same_bytes_wherever_they_are(runs_home: Path, tmp_path: Path, page: Path) -> None:
    shutil.copytree(runs_home, tmp_path / "moved", ignore=shutil.ignore_patterns("emulator", "raw", "answers"))
    store = Store(tmp_path / "moved")
    again = build_report(store, gather.analysed(store)[::-1], tmp_path / "elsewhere" / "report.html")
    assert again.read_bytes() == page.read_bytes()
    for path in files_folder(page).rglob("*.*"):
        assert path.read_bytes() == (files_folder(again) / path.relative_to(files_folder(page))).read_bytes(), path
    assert str(runs_home) not in page.read_text()


def test_twelve_models_stay_under_half_a_megabyte_for_each_probe(big_page: Path) -> None:
    assert big_page.stat().st_size < 500_000 * len(PROBES)
    assert len(re.findall(r"<svg[^>]*role=\"img\"", big_page.read_text())) > 12 * len(PROBES)


# -- what it shows -----------------------------------------------------------------------------------------


def test_every_metric_view_and_probe_has_its_figure(page: Path) -> None:
    found = Page(page)
    labels = [attributes["aria-label"] or "" for attributes in found.all("svg") if attributes.get("role") == "img"]
    files = {path.name for path in (files_folder(page) / "figures").iterdir()}
    for name in PROBES:
        probe = load_probe(name)
        changed = getattr(probe.params(), "form", "question") != "question"  # the form that chat models are asked in
        start = f"{name.replace('_', '-')}--data-sample{'--form-question' * changed}-"
        for metric in probe.key_metrics:
            forest = next(label for label in labels if label.startswith(f"{metric.name}, {metric.meaning}"))
            assert all(model in forest for model in MODELS)
            assert f"{start}-{metric.name}.svg" in files
        for view in views(probe):
            assert view.title in found.text
            assert f"{start}-by-{view.rows}.svg" in files


def test_the_headline_table_agrees_with_the_analyses(runs_home: Path, page: Path) -> None:
    text = page.read_text()
    table = text[text.index('id="glance-table"') : text.index("</table>")]
    for probe in PROBES:
        for model in MODELS[:4]:
            analysis, _ = read(runs_home, probe, model)
            for name in analysis.headline:
                value = analysis.metrics[name]
                assert value.estimate is not None
                shown = f"{value.estimate:.3f}".replace("-", "−").replace("−0.000", "0.000")
                assert re.search(rf'data-v="{re.escape(f"{value.estimate}")}[^"]*"', table) or shown in table
                chip = f'<span class="chip chip-{value.mark}">{value.mark}</span>' if value.mark else ">"
                assert f"{chip}{shown}<" in table


def test_a_model_without_readable_answers_has_no_value_and_no_mark(page: Path, runs_home: Path) -> None:
    analysis, _ = read(runs_home, "isear", "sim:refusing")
    assert analysis.metrics["max_diff"].estimate == 0.0  # as in GenderBench: a sum over no answers is 0
    rows = list(csv.DictReader(io.StringIO((files_folder(page) / "metrics.csv").read_text())))
    (row,) = (row for row in rows if row["model"] == "sim:refusing" and row["metric"] == "max_diff")
    assert (row["mark"], row["shown_mark"], row["reading"]) == ("", "–", "reference, GenderBench 0.5.0")
    assert "no mark: 0 % of the answers are readable, 90 % are needed" in page.read_text()
    shown = (files_folder(page) / "headline.md").read_text()
    assert re.search(
        r"isear \(data=sample\) \| max_diff \| sim:refusing \| reference, GenderBench 0.5.0 \| – \| – \| – \|", shown
    )
    forest = next(label for label in re.findall(r'aria-label="(max_diff,[^"]*)"', page.read_text()))
    assert re.search(r"sim:refusing –, mark –\.", forest)


def test_stamps_are_on_the_page_and_on_every_figure_and_table(page: Path) -> None:
    text = Page(page).text
    for stamp in ("EMULATED", "SAMPLE DATA", "UNFINISHED"):
        assert stamp in text
    for path in files_folder(page).rglob("*.svg"):
        assert "EMULATED · SAMPLE DATA" in path.read_text(), path
    for name in ("headline.md", "headline.tex", "runs.csv", "report.json"):
        content = (files_folder(page) / name).read_text()
        assert "EMULATED; SAMPLE DATA" in content or '"EMULATED","SAMPLE DATA"' in content
        assert "UNFINISHED" in content


def test_missing_answers_are_shown_by_group(page: Path) -> None:
    text = Page(page).text
    assert text.count("Missing answers by group") == len(PROBES)
    rows = list(csv.DictReader(io.StringIO((files_folder(page) / "missing.csv").read_text())))
    unfinished = [row for row in rows if row["model"] == "sim:random" and row["stratum"] == "race"]
    assert sum(int(row["asked"]) for row in unfinished) == 600
    assert sum(int(row["absent"]) for row in unfinished) > 0


def test_costs_are_estimated_spent_and_dated(page: Path, runs_home: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((files_folder(page) / "costs.csv").read_text())))
    assert len(rows) == len(gather.analysed(Store(runs_home)))
    for row in rows:
        spent, each = float(row["spent_usd"]), float(row["usd_per_1000_answers"])
        assert each == pytest.approx(spent / int(row["answers"]) * 1000)
        assert float(row["estimated_usd"]) > 0
        assert row["prices"] == "emulator"
    text = Page(page).text
    assert "no money was spent on them" in text
    assert "Prices: emulator." in text


def test_the_page_shows_sample_answers_of_every_label(page: Path, runs_home: Path) -> None:
    analysis, _ = read(runs_home, "gest", "sim:anthropic/random")
    assert {example.label for example in analysis.examples} == {"male", "female", "neither"}
    assert all(1 <= sum(e.label == label for e in analysis.examples) <= 3 for label in ("male", "female", "neither"))
    text = Page(page).text
    for example in analysis.examples:
        assert example.prompt in text
        assert example.answer in text
    refused, _ = read(runs_home, "isear", "sim:refusing")
    assert {(example.label, example.outcome) for example in refused.examples} == {(None, "refused")}


def test_examples_of_an_item_with_several_prompts_come_from_different_items(runs_home: Path) -> None:
    analysis, _ = read(runs_home, "isear", "sim:unbiased")
    prompts = [re.sub(r"Imagine you are [^.]*", "", e.prompt) for e in analysis.examples if e.label == "joy"]
    assert len(prompts) == len(set(prompts))


# -- accessible --------------------------------------------------------------------------------------------


def test_the_page_has_landmarks_names_and_headers(page: Path) -> None:
    found = Page(page)
    names = [name for name, _ in found.elements]
    assert all(names.count(landmark) == 1 for landmark in ("header", "main", "footer", "nav", "h1"))
    assert found.all("html")[0]["lang"] == "en"
    assert all(attributes.get("aria-label") for attributes in found.all("table"))
    assert all(attributes.get("scope") for attributes in found.all("th"))
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in found.all("svg"))
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(a["href"] or "")[1:] for a in found.all("a") if (a["href"] or "").startswith("#")}
    assert targets <= set(ids)


# -- hostile text ------------------------------------------------------------------------------------------


def test_hostile_text_stays_text(hostile_page: Path) -> None:
    found = Page(hostile_page)
    assert len(found.all("script")) == 1
    assert not found.all("img")
    for text in (HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[5], HOSTILE[6]):
        assert text in found.text
    assert "\\x1b[2J\\x1b]0;title\\x07" in found.text
    assert "\\u202egnp.exe\\u2066" in found.text


def test_no_file_of_a_report_has_control_or_bidi_characters(hostile_page: Path) -> None:
    for path in [hostile_page, *(p for p in files_folder(hostile_page).rglob("*") if p.is_file())]:
        if path.suffix != ".png":
            letters = set(path.read_text())
            assert not letters & {"\x1b", "\x07", *BIDI}, path


def test_no_cell_of_a_csv_file_is_a_formula(hostile_page: Path) -> None:
    for path in files_folder(hostile_page).glob("*.csv"):
        for row in csv.reader(io.StringIO(path.read_text())):
            for value in row:
                assert re.fullmatch(r"-?[\d.]+(e-?\d+)?", value) or not value.lstrip(" ").startswith(FORMULA), (
                    path,
                    value,
                )
    text = (files_folder(hostile_page) / "examples.csv").read_text()
    assert "'=cmd" in text


def test_latex_and_markdown_are_escaped(hostile_page: Path) -> None:
    latex = (files_folder(hostile_page) / "headline.tex").read_text()
    assert r"\textbackslash{}input\{/etc/passwd\} \& 100\% \$x\_1\$ \textbar{}" in latex
    assert "\\input" not in latex
    markdown = (files_folder(hostile_page) / "headline.md").read_text()
    assert "\\<script\\>" in markdown
    assert {line.replace("\\|", "").count("|") for line in markdown.splitlines()} == {9}


def test_figures_are_well_formed_and_hold_no_script(hostile_page: Path, page: Path) -> None:
    for path in [*files_folder(hostile_page).rglob("*.svg"), *files_folder(page).rglob("*.svg")]:
        tree = ElementTree.fromstring(path.read_text())  # noqa: S314 - our own file
        assert {element.tag.rpartition("}")[2] for element in tree.iter()} <= {
            *("svg", "title", "desc", "style", "rect", "text", "tspan", "g", "line", "circle", "path"),
        }
        assert "%" not in "".join(element.get("x", "") + element.get("cx", "") for element in tree.iter())


# -- the files beside the page -----------------------------------------------------------------------------


def test_the_downloads_in_the_page_are_the_files_beside_it(page: Path) -> None:
    for attributes in Page(page).all("a"):
        if name := attributes.get("download"):
            _, _, data = (attributes["href"] or "").partition(",")
            if name.endswith(".csv"):
                assert unquote_to_bytes(data) == (files_folder(page) / name).read_bytes()
            else:
                whole = json.loads((files_folder(page) / "report.json").read_bytes())
                embedded = json.loads(gzip.decompress(b64decode(data)))
                assert [r["analysis"]["metrics"] for r in embedded["results"]] == [
                    r["analysis"]["metrics"] for r in whole["results"]
                ]
                assert not any(result["analysis"]["examples"] for result in embedded["results"])


def test_report_json_agrees_with_the_analyses(page: Path, runs_home: Path) -> None:
    document = json.loads((files_folder(page) / "report.json").read_bytes())
    assert document["format"] == 1
    assert len(document["results"]) == len(gather.analysed(Store(runs_home)))
    for entry in document["results"]:
        source = json.loads((runs_home / entry["provenance"]["run"] / "metrics.json").read_bytes())
        for name, value in entry["analysis"]["metrics"].items():
            assert value == source["metrics"][name]
        assert entry["cost"]["spent"] > 0
        assert entry["provenance"]["data"]
    assert sorted(document["files"]) == sorted(
        str(path.relative_to(files_folder(page)))
        for path in files_folder(page).rglob("*")
        if path.is_file() and path.name != "report.json"
    )


def test_a_new_report_removes_the_last_ones_files_and_no_others(runs_home: Path, tmp_path: Path) -> None:
    store = Store(runs_home)
    out = tmp_path / "report.html"
    build_report(store, gather.analysed(store), out)
    (files_folder(out) / "mine.txt").write_text("keep me")
    build_report(store, [folder_of(runs_home, "gest", "sim:unbiased")], out)
    left = {path.name for path in (files_folder(out) / "figures").iterdir()}
    assert {name.partition("-")[0] for name in left} == {"gest"}
    assert (files_folder(out) / "mine.txt").read_text() == "keep me"


def test_png_figures_are_written_if_the_converter_is_installed(runs_home: Path, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    store = Store(runs_home)
    out = build_report(store, [folder_of(runs_home, "gest", "sim:unbiased")], tmp_path / "report.html")
    pictures = list((files_folder(out) / "figures").glob("*.png"))
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


# -- the command -------------------------------------------------------------------------------------------


def test_the_command_reports_every_analysed_run(runs_home: Path, tmp_path: Path, batchbench: Run) -> None:
    ran = batchbench("report", "--home", runs_home, "--out", tmp_path / "r.html", "--json")
    assert ran.returncode == 0, ran.stderr
    output = json.loads(ran.stdout)
    assert output["report"] == str(tmp_path / "r.html")
    assert len(output["runs"]) == len(PROBES) * len(MODELS) + 1
    assert (tmp_path / "r-files" / "report.json").is_file()


def test_the_command_reports_the_chosen_runs(runs_home: Path, tmp_path: Path, batchbench: Run) -> None:
    words = ["report", "gest", "--model", "sim:unbiased", "--home", runs_home, "-o", tmp_path / "r.html", "--json"]
    output = json.loads(batchbench(*words).stdout)
    assert [Path(run).parent.name.partition("-")[0] for run in output["runs"]] == ["gest"]
    folder = folder_of(runs_home, "isear", "sim:unbiased")
    output = json.loads(batchbench("report", "--model", folder, "--home", runs_home, "-o", tmp_path / "s.html", "--json").stdout)  # fmt: skip  # noqa: E501
    assert output["runs"] == [str(folder)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hiring"], "unknown probe 'hiring': did you mean 'hiring_an'?"),
        (["--model", "sim:unbaised"], "unknown analysed model 'sim:unbaised': did you mean 'sim:unbiased'?"),
        (["isear", "--model", "sim:random"], "none of these has been analysed yet"),
    ],
)
def test_mistakes_are_explained_in_one_line(runs_home: Path, batchbench: Run, words: list[str], message: str) -> None:
    ran = batchbench("report", *words, "--home", runs_home)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_report_about_an_empty_home_is_refused(tmp_path: Path, batchbench: Run) -> None:
    ran = batchbench("report", "--home", tmp_path, "--json")
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["exit_code"] == 2
    assert not (tmp_path / "report.html").exists()


def test_the_error_names_a_damaged_analysis(runs_home: Path, tmp_path: Path, batchbench: Run) -> None:
    for file in ("metrics.json", "cells.parquet"):
        shutil.copytree(folder_of(runs_home, "gest", "sim:unbiased"), tmp_path / file)
        (tmp_path / file / file).write_bytes(b"{")
        ran = batchbench("report", "--model", tmp_path / file, "--home", runs_home, "-o", tmp_path / "r.html")
        assert ran.returncode == 65
        assert str(tmp_path / file / file) in ran.stderr
        assert ran.stderr.count("\n") == 1


def test_an_analysis_older_than_the_last_answers_is_stamped(runs_home: Path, tmp_path: Path, batchbench: Run) -> None:
    home = tmp_path / "home"
    shutil.copytree(runs_home, home, ignore=shutil.ignore_patterns("emulator"))
    more = ["run", "gest", "--set", "data=sample", "--model", "sim:unbiased", "--repetitions", "2", "--home", home]
    ran = batchbench(*more, "--quiet")
    assert ran.returncode == 0, ran.stderr
    out = build_report(Store(home), [folder_of(home, "gest", "sim:unbiased")], tmp_path / "r.html")
    assert "OUTDATED" in out.read_text()
