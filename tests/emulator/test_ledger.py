"""The ledger is the only state: a killed emulator loses no batch, adds no batch and bills no answer twice."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from hashlib import sha256

import pytest

from batchbench.providers.prices import EMULATOR
from tests.emulator.conftest import Emulate
from tests.emulator.driver import Emulator, chat_lines


def audit(emulator: Emulator) -> None:
    """Check with the ledger and the results alone that every accepted request was billed once and answered once."""
    events = emulator.events()
    assert events[0]["event"] == "born"
    counts = Counter((line["event"], line["batch"]) for line in events if line["event"] in ("accepted", "ended"))
    assert set(counts.values()) <= {1}
    for line in [line for line in events if line["event"] == "accepted"]:
        batch = emulator.wait(line["batch"])
        results = emulator.results(batch)
        ids = [result["custom_id"] for result in results]
        billed = emulator.billed(batch["id"])
        assert Counter(billed) == Counter(ids), "each answer is billed once, under its own id"
        assert len(set(ids)) == len(ids)
        ended = next(line for line in emulator.events("ended") if line["batch"] == batch["id"])
        bills = [line for line in emulator.events("billed") if line["batch"] == batch["id"]]
        assert sum(line["cost"] for line in bills) == ended["cost"]
        assert [line["block"] for line in bills] == list(range(len(bills)))


@pytest.mark.full
def test_an_emulator_killed_at_random_times_loses_nothing(emulate: Emulate) -> None:
    emulator = emulate()
    chance = random.Random(4)
    acknowledged: list[str] = []
    for k in range(8):
        nonce = f"kill{k}"
        submit = emulator.submit if k % 2 else emulator.submit_messages
        acknowledged.append(submit(nonce, 3000))
        time.sleep(chance.random() * 0.15)
        emulator.kill()
        emulator.start()
    known = {line["batch"] for line in emulator.events("accepted")}
    assert known == set(acknowledged), "exactly the acknowledged batches exist"
    audit(emulator)


def test_a_batch_interrupted_between_two_bills_bills_only_the_rest(emulate: Emulate) -> None:
    emulator = emulate()
    batch = emulator.wait(emulator.submit("blocks", 3500))
    before = emulator.raw_results(batch)
    emulator.stop()
    lines = emulator.ledger.read_bytes().split(b"\n")
    first_bill = next(k for k, line in enumerate(lines) if b'"event":"billed"' in line)
    emulator.ledger.write_bytes(b"\n".join(lines[: first_bill + 2]) + b"\n")
    emulator.start()
    batch = emulator.wait(batch["id"])
    assert emulator.raw_results(batch) == before, "the second run writes the same bytes"
    bills = emulator.events("billed")
    assert [(line["block"], line["n"]) for line in bills] == [(0, 1000), (1, 1000), (2, 1000), (3, 500)]
    audit(emulator)


@pytest.mark.parametrize("tail", [b'{"event":"bil', b"\x00" * 50, b"{"])
def test_an_incomplete_last_line_is_removed(emulate: Emulate, tail: bytes) -> None:
    emulator = emulate()
    emulator.wait(emulator.submit("torn", 5))
    emulator.kill()
    complete = emulator.ledger.read_bytes()
    emulator.ledger.write_bytes(complete + tail)
    emulator.start()
    assert emulator.ledger.read_bytes() == complete
    audit(emulator)


def test_a_damaged_ledger_is_refused(emulate: Emulate) -> None:
    emulator = emulate()
    emulator.submit("damaged", 2)
    emulator.stop()
    lines = emulator.ledger.read_bytes().split(b"\n")
    for text, message in (
        (b"\n".join([lines[0], b"{oops", *lines[1:]]), "line 2"),
        (b"\n".join(lines[1:]), "not a ledger of format"),
    ):
        emulator.ledger.write_bytes(text)
        command = [sys.executable, "-m", "batchbench", "emulate", "--json", "--state", str(emulator.state)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        assert ran.returncode == 65
        assert message in ran.stderr
        assert "Traceback" not in ran.stderr


def test_the_results_confirm_the_bill(emulator: Emulator) -> None:
    batch = emulator.wait(emulator.submit("bill", 7))
    results = {line["custom_id"]: line["response"]["body"] for line in emulator.results(batch)}
    bill = next(line for line in emulator.events("billed") if line["batch"] == batch["id"])
    for k, custom_id in enumerate(bill["ids"]):
        usage = results[custom_id]["usage"]
        assert bill["inputs"][k] == usage["prompt_tokens"]
        assert bill["outputs"][k] == usage["completion_tokens"]
        assert bill["costs"][k] == EMULATOR.cost(usage["prompt_tokens"], usage["completion_tokens"])
        text = results[custom_id]["choices"][0]["message"]["content"]
        assert bill["texts"][k] == sha256(text.encode()).hexdigest()[:12]
    assert bill["cost"] == sum(bill["costs"])
    validated = next(line for line in emulator.events("validated") if line["batch"] == batch["id"])
    assert sorted(validated["ids"]) == sorted(bill["ids"])


def test_two_creates_of_one_file_are_two_billed_batches(emulator: Emulator) -> None:
    file = emulator.upload("twice", chat_lines("twice", 3)).json()["id"]
    first, second = (emulator.create(file).json()["id"] for _ in range(2))
    assert first != second
    for batch in (first, second):
        emulator.wait(batch)
        assert len(emulator.billed(batch)) == 3


def test_answers_do_not_depend_on_the_submission(emulator: Emulator) -> None:
    texts = []
    for nonce in ("sub1", "sub2"):
        results = emulator.results(emulator.wait(emulator.submit(nonce, 5)))
        texts.append(
            {
                line["custom_id"].partition("-")[2]: line["response"]["body"]["choices"][0]["message"]["content"]
                for line in results
            }
        )
    assert texts[0] == texts[1]


def test_a_batch_reads_its_input_file_after_the_file_was_deleted(emulate: Emulate) -> None:
    emulator = emulate("--delay", "processing=60")
    batch = emulator.submit("early", 4)
    file = emulator.batch(batch)["input_file_id"]
    assert emulator.call("DELETE", f"/openai/v1/files/{file}").status == 200
    emulator.advance(61)
    assert len(emulator.results(emulator.wait(batch))) == 4
    for _ in range(200):
        if not (emulator.state / "files" / f"{file}.jsonl").exists():
            break
        time.sleep(0.01)
    assert not (emulator.state / "files" / f"{file}.jsonl").exists()


def test_stats_and_ledger_are_served_over_http(emulate: Emulate) -> None:
    emulator = emulate()
    emulator.wait(emulator.submit("stats", 5))
    stats = emulator.get("/__emu/stats")
    assert stats["billed"]["client"]["answers"] == 5
    assert stats["billed"]["client"]["cost"] == sum(line["cost"] for line in emulator.events("billed"))
    assert stats["open"] == 0
    served = emulator.call("GET", "/__emu/ledger").body
    assert [json.loads(line) for line in served.split(b"\n") if line] == emulator.events()


def test_a_state_folder_has_one_emulator(emulate: Emulate) -> None:
    emulator = emulate()
    command = [sys.executable, "-m", "batchbench", "emulate", "--json", "--state", str(emulator.state)]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert second.returncode == 11
    assert "another emulator" in second.stderr
    assert emulator.get("/__emu/stats")["batches"] == 0


def test_another_seed_is_refused_for_an_existing_ledger(emulate: Emulate) -> None:
    emulator = emulate("--seed", "3")
    emulator.stop()
    command = [sys.executable, "-m", "batchbench", "emulate", "--state", str(emulator.state), "--seed", "4"]
    other = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert other.returncode == 2
    assert "was started with --seed 3" in other.stderr
    emulator.start()


@pytest.mark.parametrize("submit", ["submit", "submit_messages"])
def test_another_users_batch_is_created_again_if_the_ledger_has_lost_it(emulate: Emulate, submit: str) -> None:
    emulator = emulate(rules=[{"do": "foreign"}])
    getattr(emulator, submit)("aaaaaaaaaa")
    emulator.kill()
    first_line = emulator.ledger.read_bytes().splitlines(keepends=True)[0]
    emulator.ledger.write_bytes(first_line)  # the files still exist, and the ids repeat in the same order
    emulator.start()
    batch = getattr(emulator, submit)("bbbbbbbbbb")
    emulator.wait(batch)
    assert Counter(event.get("owner", "client") for event in emulator.events("accepted"))["someone else"] == 1
