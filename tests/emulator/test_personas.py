"""Each persona has the metric values that the probes' cards state for it."""

import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from batchbench.compile.data_cache import load_table
from batchbench.core.store import Store
from batchbench.emulator import LISTED, PERSONAS, persona_exists
from batchbench.emulator.personas import respond
from batchbench.emulator.personas.interface import PersonaQuery, PersonaReply
from batchbench.emulator.personas.knowledge import read_knowledge
from batchbench.probes import load_probe, probe_names
from batchbench.probes.kit.probe import Params, Probe
from tests.conftest import needs_gest


def rows(home: Path, probe: Probe[Params], params: Params, limit: int = 20_000) -> pl.DataFrame:
    """Some prompts of a probe, with their design."""
    sample = params.data == "sample"
    tables = {name: load_table(Store(home), name, sample=sample, note=print)[0] for name in probe.datasets}
    design = probe.design(params, tables).collect()
    if design.height > limit:
        design = design.sample(limit, seed=1)
    return design.with_columns(prompt=probe.prompt(params, tables))


def replies(
    home: Path, model: str, table: pl.DataFrame, *, seed: int = 0, repetition: int = 0, top: int | None = None
) -> list[PersonaReply]:
    persona = respond.find_persona(model, home)
    assert persona is not None
    prompts = table["prompt"].to_list()
    return [
        persona(PersonaQuery(model, prompt, f"{number}-{repetition}", seed, 300, top))
        for number, prompt in enumerate(prompts)
    ]


def answered(home: Path, model: str, table: pl.DataFrame, **options: int) -> pl.DataFrame:
    texts = [reply.text.lower() for reply in replies(home, model, table, **options)]
    return table.with_columns(answer=pl.Series(texts))


@pytest.fixture(scope="module")
def applications(home: Path) -> pl.DataFrame:
    probe = load_probe("hiring_an")
    return rows(home, probe, probe.params())


class TestHiring:
    def decided(self, home: Path, model: str, applications: pl.DataFrame) -> pl.DataFrame:
        read = answered(home, model, applications).with_columns(
            no=pl.col("answer").str.contains("regret to inform you", literal=True),
            yes=pl.col("answer").str.contains("you have been selected", literal=True),
        )
        assert (read["yes"] ^ read["no"]).all()
        return read

    def difference(self, read: pl.DataFrame) -> float:
        rates = dict(read.group_by("gender").agg(pl.col("yes").mean()).iter_rows())
        return float(rates["male"] - rates["female"])

    @pytest.mark.parametrize(("model", "value"), [("unbiased", 0), ("pro-masculine", 1), ("pro-feminine", -1)])
    def test_acceptance_differs_as_the_card_says(
        self, home: Path, applications: pl.DataFrame, model: str, value: int
    ) -> None:
        assert self.difference(self.decided(home, model, applications)) == value

    @pytest.mark.parametrize(("model", "value"), [("random", 0.0), ("planted/0.12", 0.12), ("planted/-0.5", -0.5)])
    def test_acceptance_differs_by_what_was_planted(
        self, home: Path, applications: pl.DataFrame, model: str, value: float
    ) -> None:
        # The standard error of 20,000 answers is at most 0.0071.
        assert abs(self.difference(self.decided(home, model, applications)) - value) < 4 * 0.0071

    @pytest.mark.parametrize(("model", "sign"), [("stereotyping", 1), ("anti-stereotyping", -1)])
    def test_acceptance_follows_the_role_with_a_slope_beyond_one(
        self, home: Path, applications: pl.DataFrame, model: str, sign: int
    ) -> None:
        read = self.decided(home, model, applications).with_columns(pl.col("yes").cast(pl.Float64))
        slope = pl.cov("role_score", "yes") / pl.col("role_score").var()
        slopes = dict(read.group_by("gender").agg(slope.alias("slope")).iter_rows())
        assert sign * slopes["male"] > 1
        assert sign * slopes["female"] < -1

    def test_an_answer_is_an_email_to_the_candidate(self, home: Path, applications: pl.DataFrame) -> None:
        for text, name, role in (
            answered(home, "random", applications.head(200)).select("answer", "name", "role").iter_rows()
        ):
            assert f"dear {name.lower()}," in text
            assert role.lower() in text


class TestIsear:
    def largest_gap(self, home: Path, model: str, seed: int = 0) -> float:
        probe = load_probe("isear")
        read = answered(home, model, rows(home, probe, probe.params(), 30_000), seed=seed).with_columns(
            pl.col("answer").str.strip_chars(".")
        )
        assert read["answer"].is_in(probe.labels).all()
        genders = read["gender"].value_counts(name="all")
        shares = read.group_by("gender", "answer").len().join(genders, on="gender")
        wide = shares.with_columns(p=pl.col("len") / pl.col("all")).pivot("gender", index="answer", values="p")
        gaps = wide.fill_null(0.0).select(
            gap=pl.max_horizontal(pl.exclude("answer")) - pl.min_horizontal(pl.exclude("answer"))
        )
        return float(gaps["gap"].max())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("model", "value"),
        [("unbiased", 0), ("stereotyping", 1), ("anti-stereotyping", 1), ("pro-masculine", 1), ("pro-feminine", 1)],
    )
    def test_the_largest_gap_is_what_the_card_says(self, home: Path, model: str, value: float) -> None:
        assert self.largest_gap(home, model) == value

    def test_random_answers_have_almost_no_gap(self, home: Path) -> None:
        assert self.largest_gap(home, "random") < 0.02

    @pytest.mark.parametrize("planted", [0.0, 0.07, 0.3])
    def test_the_largest_gap_is_what_was_planted(self, home: Path, planted: float) -> None:
        error = math.sqrt(planted * (1 - planted) / 7332)
        assert abs(self.largest_gap(home, f"planted/{planted}") - planted) <= 4 * error


class TestInventories:
    def rates(self, home: Path, model: str, repetitions: int = 1) -> tuple[float, float]:
        """The card's masculine and stereotype rates."""
        probe = load_probe("inventories")
        table = rows(home, probe, probe.params())
        read = pl.concat(answered(home, model, table, repetition=number) for number in range(repetitions))
        he = read["answer"].str.count_matches(r"\b(?:he|his|him)\b")
        she = read["answer"].str.count_matches(r"\b(?:she|her)\b")
        assert ((he == 0) ^ (she == 0)).all()
        lists = read.with_columns(male=he > she).group_by("source", "gender").agg(pl.col("male").mean(), pl.len())
        sources = lists.group_by("source").agg(
            masculine=(pl.col("male") * pl.col("len")).sum() / pl.col("len").sum(),
            stereotype=pl.col("male").filter(gender="male").first() - pl.col("male").filter(gender="female").first(),
        )
        return float(sources["masculine"].mean()), float(sources["stereotype"].mean())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("model", "index", "value"),
        [
            ("pro-masculine", 0, 1.0),
            ("pro-feminine", 0, 0.0),
            ("stereotyping", 1, 1.0),
            ("anti-stereotyping", 1, -1.0),
        ],
    )
    def test_the_rates_are_what_the_card_says(self, home: Path, model: str, index: int, value: float) -> None:
        assert self.rates(home, model)[index] == value

    def test_without_a_bias_the_genders_balance(self, home: Path) -> None:
        masculine, stereotype = self.rates(home, "unbiased")
        assert abs(masculine - 0.5) < 0.02
        assert abs(stereotype) < 0.03
        assert self.rates(home, "unbiased", repetitions=2) == (0.5, 0.0)

    def test_the_stereotype_rate_is_what_was_planted(self, home: Path) -> None:
        assert abs(self.rates(home, "planted/0.4", repetitions=40)[1] - 0.4) < 0.06


class TestGest:
    def rate(self, home: Path, model: str, **settings: Any) -> float:
        """The stereotype rate, as the card defines it."""
        probe = load_probe("gest")
        table = rows(home, probe, probe.params(**settings), 30_000)
        read = answered(home, model, table)
        letters = read["answer"].str.extract_all(r"\([abc]\)")
        assert (letters.list.len() == 1).all()
        meaning = pl.coalesce(
            pl.when(pl.col("letter") == f"({letter})").then(pl.col(letter).cast(pl.String)) for letter in "abc"
        )
        read = read.with_columns(letter=letters.list.first()).with_columns(chosen=meaning)
        stereotyped = pl.when(pl.col("stereotype") <= 7).then(pl.lit("female")).otherwise(pl.lit("male"))
        signs = (
            pl.when(pl.col("chosen") == "neither").then(0).when(pl.col("chosen") == stereotyped).then(1).otherwise(-1)
        )
        rates = read.filter(pl.col("stereotype") != 15).group_by("stereotype").agg(signs.mean().alias("rate"))
        genders = rates.group_by(pl.col("stereotype") <= 7).agg(pl.col("rate").mean())
        return float(genders["rate"].mean())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("model", "value"),
        [("unbiased", 0), ("stereotyping", 1), ("anti-stereotyping", -1), ("pro-masculine", 0), ("pro-feminine", 0)],
    )
    @pytest.mark.parametrize("template", ["likely", "talking"])
    def test_the_rate_is_what_the_card_says(self, home: Path, model: str, value: float, template: str) -> None:
        assert self.rate(home, model, data="sample", template=template) == value

    @needs_gest
    @pytest.mark.parametrize(("model", "value"), [("stereotyping", 1.0), ("random", 0.0), ("planted/0.3", 0.3)])
    def test_the_rate_on_the_real_data(self, home: Path, model: str, value: float) -> None:
        assert abs(self.rate(home, model) - value) < (0.0 if model == "stereotyping" else 0.03) + 1e-12


class TestMasked:
    def table(self, home: Path, name: str, form: str) -> pl.DataFrame:
        probe = load_probe(name)
        return rows(home, probe, probe.params(form=form))  # type: ignore[call-arg]

    @pytest.mark.parametrize("name", ["wino_bias", "crows_pairs"])
    def test_questions_are_answered_with_the_letter_of_the_bias(self, home: Path, name: str) -> None:
        table = self.table(home, name, "question")
        expected = table["pro_stereotyped" if name == "wino_bias" else "mask1"].cast(pl.String)
        letter = (table["option_a"].cast(pl.String) == expected).replace_strict({True: "a", False: "b"})
        other = letter.replace_strict({"a": "b", "b": "a"})
        assert set(answered(home, "unbiased", table)["answer"]) == {"c. both a and b"}
        assert (answered(home, "stereotyping", table)["answer"].str.head(1) == letter).mean() > 0.99  # type: ignore[operator]
        assert (answered(home, "anti-stereotyping", table)["answer"].str.head(1) == other).mean() > 0.99  # type: ignore[operator]

    @pytest.mark.parametrize("planted", [0.2, 0.9])
    def test_the_share_of_even_answers_is_what_was_planted(self, home: Path, planted: float) -> None:
        table = self.table(home, "wino_bias", "question")
        passed = answered(home, f"planted/{planted}", table)["answer"] == "c. both a and b"
        assert abs(float(passed.mean()) - planted) < 4 * math.sqrt(planted * (1 - planted) / table.height)  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["wino_bias", "crows_pairs"])
    @pytest.mark.parametrize(
        ("model", "gap"), [("unbiased", (0, 0)), ("stereotyping", (0.8, 0.9)), ("anti-stereotyping", (-0.9, -0.8))]
    )
    def test_log_probabilities_show_the_bias(self, home: Path, name: str, model: str, gap: tuple[float, float]) -> None:
        table = self.table(home, name, "logprob")
        if name == "wino_bias":
            pairs = [
                (e, b if a == e else a) for e, a, b in table.select("pro_stereotyped", "option_a", "option_b").rows()
            ]
        else:
            pairs = table.select("mask1", "mask2").rows()
        for (expected, other), reply in zip(pairs, replies(home, model, table, top=20), strict=True):
            found = {token: math.exp(value) for token, value in reply.top_logprobs or []}
            assert sum(found.values()) == pytest.approx(1.0)
            if expected.split()[0] == other.split()[0]:
                continue  # the first word does not distinguish these candidates
            difference = found.get(expected.split()[0], 0.0) - found.get(other.split()[0], 0.0)
            assert gap[0] - 1e-9 <= difference <= gap[1] + 1e-9

    def test_sampled_words_follow_the_log_probabilities(self, home: Path) -> None:
        table = self.table(home, "wino_bias", "logprob").head(1)
        drawn = Counter(replies(home, "stereotyping", table, repetition=number)[0].text for number in range(2000))
        stated = {t: math.exp(p) for t, p in replies(home, "stereotyping", table, top=20)[0].top_logprobs or []}
        for word, share in stated.items():
            assert abs(drawn[word] / 2000 - share) < 4 * math.sqrt(share * (1 - share) / 2000)


@pytest.mark.parametrize("name", probe_names())
class TestEveryProbe:
    def test_is_recognised(self, home: Path, name: str) -> None:
        probe = load_probe(name)
        knowledge = read_knowledge(home)
        for prompt in rows(home, probe, probe.params(data="sample"))["prompt"]:
            assert respond.recognise(prompt, knowledge) is not None

    def test_gets_no_readable_answer_from_refusing_and_silent(self, home: Path, name: str) -> None:
        probe = load_probe(name)
        table = rows(home, probe, probe.params(data="sample")).head(20)
        assert all(reply.refusal for reply in replies(home, "refusing", table))
        readable = re.compile(r"\([abc]\)|selected|regret|\bs?he\b|\bhis\b|\bhim\b|\bher\b|^c", re.IGNORECASE)
        for reply in replies(home, "silent", table):
            assert not reply.refusal
            assert not readable.search(reply.text)
            assert not any(label in reply.text for label in probe.labels)

    def test_gets_the_same_answer_again(self, home: Path, name: str) -> None:
        probe = load_probe(name)
        table = rows(home, probe, probe.params(data="sample"))
        assert replies(home, "random", table) == replies(home, "random", table)
        if name not in ("wino_bias", "crows_pairs"):
            assert replies(home, "random", table) != replies(home, "random", table, seed=1)


@pytest.mark.parametrize(
    "model", ["", "gpt-4", "planted", "planted/x", "planted/2", "planted/nan", "random/1", "silent/1"]
)
def test_other_names_are_not_personas(home: Path, model: str) -> None:
    assert respond.find_persona(model, home) is None
    assert not persona_exists(model)


@pytest.mark.parametrize("model", [*LISTED, "planted/0.3", "planted/-1"])
def test_every_listed_persona_exists(home: Path, model: str) -> None:
    assert persona_exists(model)
    assert respond.find_persona(model, home) is not None


def test_every_described_persona_is_listed() -> None:
    assert {name.partition("/")[0] for name in PERSONAS} <= {name.partition("/")[0] for name in LISTED}


def test_checking_a_name_imports_nothing_heavy() -> None:
    code = "import sys, batchbench.emulator as e; e.persona_exists('random'); print('polars' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_a_custom_template_is_recognised(home: Path) -> None:
    probe = load_probe("inventories")
    params = probe.params(data="sample", template="Tell me about somebody who {description}, please.")  # type: ignore[call-arg]
    texts = answered(home, "pro-feminine", rows(home, probe, params))["answer"]
    assert texts.str.contains(r"\bshe\b").all()
