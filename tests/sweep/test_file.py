"""The sweep file: what it means, and that every mistake is reported in one line with its place."""

import itertools
from pathlib import Path

import pytest

from batchbench.app.sweep import plan_sweep
from batchbench.app.sweep_file import EXAMPLE, read
from batchbench.errors import UsageError
from tests.conftest import Run

GOOD = 'models = ["sim:random"]\nprobes = ["gest"]\n'

MISTAKES = [
    ("models == []", "sweep.toml: ", "at line 1"),
    ("models = [", "sweep.toml: ", "at end of document"),
    ('probes = ["gest"]\n', "sweep.toml: models: list the models", "[[models]]"),
    ('models = ["sim:random"]\n', "sweep.toml: probes: list the probes", "[[probes]]"),
    ('models = "sim:random"\nprobes = ["gest"]\n', "sweep.toml: models: list the models", "models = [...]"),
    (f"{GOOD}budgt = 5\n", "sweep.toml:3: unknown key 'budgt'", "did you mean 'budget'?"),
    (f"{GOOD}budget = -5\n", "sweep.toml:3: budget", "not an amount in dollars"),
    (f'{GOOD}budget = "a lot"\n', "sweep.toml:3: budget", "not an amount in dollars"),
    (f"{GOOD}budget = true\n", "sweep.toml:3: budget", "not an amount in dollars"),
    (f"{GOOD}sample_k = 0\n", "sweep.toml:3: sample_k", "not a number of items above 0, or `all`"),
    (f'{GOOD}sample_k = "some"\n', "sweep.toml:3: sample_k", "not a number of items above 0, or `all`"),
    (f"{GOOD}repetitions = 1.5\n", "sweep.toml:3: repetitions", "not a whole number from 1 to 65,535"),
    (f"{GOOD}replicates = -1\n", "sweep.toml:3: replicates", "not a whole number from 0 to 1,000,000"),
    ('models = ["sim:random"]\nprobes = ["gets"]\n', "sweep.toml:2: probes 1 (gets)", "did you mean 'gest'?"),
    ('models = ["smi:random"]\nprobes = ["gest"]\n', "sweep.toml:1: models 1 (smi:random)", "did you mean 'sim'?"),
    ('models = ["sim:randum"]\nprobes = ["gest"]\n', "sweep.toml:1: models 1 (sim:randum)", "did you mean 'random'?"),
    ('models = ["gpt-4"]\nprobes = ["gest"]\n', "sweep.toml:1: models 1 (gpt-4)", "not of the form PROVIDER:MODEL"),
    ('models = [7]\nprobes = ["gest"]\n', "sweep.toml: models 1", "it has no name"),
    ('probes = ["gest"]\n[[models]]\ntemperature = 1\n', "sweep.toml: models 1", "it has no name"),
    (
        'probes = ["gest"]\n[[models]]\nname = "sim:random"\ntemperatur = 1\n',
        "sweep.toml:4: models 1 (sim:random)",
        "did you mean 'temperature'?",
    ),
    (
        'probes = ["gest"]\n[[models]]\nname = "sim:random"\ntemperature = [0.5, 3]\n',
        "sweep.toml:4: models 1 (sim:random): temperature",
        "not a number from 0 to 2",
    ),
    (
        'probes = ["gest"]\n[[models]]\nname = "sim:random"\ntemperature = []\n',
        "sweep.toml:4: models 1 (sim:random)",
        "an empty list",
    ),
    (
        'probes = ["gest"]\n[[models]]\nname = "sim:random"\nshare = 0\n',
        "sweep.toml:4: models 1 (sim:random)",
        "share 0 is not a number above 0",
    ),
    (
        'probes = ["gest"]\n[[models]]\nname = "sim:random"\nprice = "cheap"\n',
        "sweep.toml:4: models 1 (sim:random): price",
        "dollars per million tokens",
    ),
    (
        'probes = ["gest"]\n[[models]]\nname = "openai:m"\nbase_url = "ftp://example.org"\n',
        "sweep.toml:4: models 1 (openai:m): base URL",
        "is not an http or https address",
    ),
    (
        'probes = ["gest"]\n[[models]]\nname = "sim:random"\nbase_url = "https://example.org"\n',
        "sweep.toml: models 1 (sim:random)",
        "is on this machine",
    ),
    (
        'probes = ["gest"]\nmodels = ["sim:random", { name = "sim:random" }]\n',
        "sweep.toml: models 2 (sim:random)",
        "listed twice for it",
    ),
    (
        'models = ["sim:random"]\n[[probes]]\nname = "gest"\nnum_reordering = 2\n',
        "sweep.toml:4: probes 1 (gest)",
        "did you mean 'num_reorderings'?",
    ),
    (
        'models = ["sim:random"]\n[[probes]]\nname = "gest"\nnum_reorderings = [2, 9]\n',
        "sweep.toml:4: probes 1 (gest)",
        "`int` <= 6",
    ),
    (
        'models = ["sim:random"]\n[[probes]]\nname = "gest"\nnum_repetitions = 2\n',
        "sweep.toml:4: probes 1 (gest)",
        "sample_k or repetitions",
    ),
    (
        'models = ["sim:random"]\n[[probes]]\nname = "gest"\ndata = "smaple"\n',
        "sweep.toml:4: probes 1 (gest)",
        "invalid enum value 'smaple'",
    ),
    pytest.param("probes = " + "[" * 5000, "sweep.toml: ", "too many brackets", id="brackets"),
]


@pytest.mark.parametrize(("text", "place", "message"), MISTAKES)
def test_a_mistake_is_reported_with_its_place(tmp_path: Path, text: str, place: str, message: str) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        plan_sweep(read(file))
    reported = str(raised.value)
    assert place in reported
    assert message in reported
    assert "\n" not in reported
    assert not (tmp_path / "manifests").exists()


def test_the_example_makes_the_runs_it_describes(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(EXAMPLE)
    sweep = read(tmp_path / "sweep.toml")
    runs = plan_sweep(sweep)
    assert sweep.budget == 5_000_000
    asked = {
        (one.probe.name, getattr(one.params, "num_reorderings", None), one.target.name, one.target.temperature)
        for one in runs
    }
    probes, models = [("hiring_an", None), ("gest", 1), ("gest", 6)], [("unbiased", None), ("stereotyping", 0.0)]
    models.append(("stereotyping", 1.0))
    assert asked == {(*p, f"sim:{m}", t) for p, (m, t) in itertools.product(probes, models)}
    assert {(one.probe.name, one.weight, one.options.sample_k) for one in runs} == {
        ("hiring_an", 2.0, 1000),
        ("gest", 1.0, 500),
    }


def test_the_commented_lines_of_the_example_are_valid(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in EXAMPLE.splitlines()[1:]]
    (tmp_path / "sweep.toml").write_text("\n".join(line.removeprefix("#") if line == "#" else line for line in lines))
    sweep = read(tmp_path / "sweep.toml")
    assert {model.name.partition(":")[0] for model in sweep.models} == {"sim", "openai", "anthropic", "chat"}


def test_a_masked_probe_is_asked_in_the_forms_that_fit_the_model(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    names = ["sim:random", "sim:anthropic/random", "openai:gpt-4.1-mini", "openai:o3", "anthropic:claude-haiku-4-5"]
    file.write_text(f'probes = ["wino_bias"]\nmodels = {names}\n')
    runs = plan_sweep(read(file))
    forms = {name: [one.params.form for one in runs if one.target.name == name] for name in names}  # type: ignore[attr-defined]
    assert forms == {
        "sim:random": ["question", "logprob"],
        "sim:anthropic/random": ["question"],
        "openai:gpt-4.1-mini": ["question", "logprob"],
        "openai:o3": ["question"],  # a reasoning model gives no log-probabilities
        "anthropic:claude-haiku-4-5": ["question"],
    }
    file.write_text(f'models = {names}\n[[probes]]\nname = "wino_bias"\nform = "logprob"\n')
    with pytest.raises(UsageError, match=r"models 2 .* gives no log-probabilities"):  # the file requires it
        plan_sweep(read(file))


def test_a_file_that_is_missing_or_not_text_is_reported_in_one_line(batchbench: Run, tmp_path: Path) -> None:
    for name, content, message in [("no.toml", None, "cannot read"), ("bin.toml", b"\xff\xfe", "not UTF-8")]:
        if content:
            (tmp_path / name).write_bytes(content)
        ran = batchbench("sweep", tmp_path / name, "--home", tmp_path)
        assert message in ran.stderr
        assert len(ran.stderr.splitlines()) == 1
