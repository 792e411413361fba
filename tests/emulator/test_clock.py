"""Virtual time: tests advance the clock by days, and batches, files and limits follow it."""

import pytest

from batchbench.emulator.ledger import events
from batchbench.emulator.ledger.lifecycle import answered_by, next_step, status
from batchbench.emulator.ledger.state import EmulatedBatch
from batchbench.emulator.server.limits import Delays
from tests.emulator.conftest import Emulate

DAY = 86_400.0


def test_a_slow_batch_shows_every_status(emulate: Emulate) -> None:
    delays = ("validating=60", "processing=3600", "finalizing=60")
    emulator = emulate(*(argument for delay in delays for argument in ("--delay", delay)))
    batch = emulator.submit("states", 10)
    seen = emulator.batch(batch)
    assert (seen["status"], seen["in_progress_at"]) == ("validating", None)
    assert seen["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    emulator.advance(61)
    seen = emulator.wait(batch, "in_progress")
    assert seen["request_counts"] == {"total": 10, "completed": 0, "failed": 0}
    assert 60 <= seen["in_progress_at"] - seen["created_at"] <= 62
    emulator.advance(1800)
    assert emulator.batch(batch)["request_counts"]["completed"] in (4, 5)
    emulator.advance(1800)
    seen = emulator.wait(batch, "finalizing")
    assert seen["output_file_id"] is None
    emulator.advance(61)
    seen = emulator.wait(batch, "completed")
    assert 3719 <= seen["completed_at"] - seen["created_at"] <= 3723
    assert seen["finalizing_at"] <= seen["completed_at"]


def test_a_batch_that_is_too_slow_expires(emulate: Emulate) -> None:
    emulator = emulate("--delay", "processing=200000")
    batch = emulator.submit("slow", 100)
    emulator.wait(batch, "in_progress")
    emulator.advance(DAY + 1)
    seen = emulator.wait(batch, "expired")
    assert seen["expired_at"] == seen["expires_at"]
    assert seen["request_counts"] == {"total": 100, "completed": 43, "failed": 0}, "expired is not failed"
    lines = emulator.results(seen)
    expired = [line for line in lines if line["response"] is None]
    assert len(expired) == 57
    assert {line["error"]["code"] for line in expired} == {"batch_expired"}
    assert sorted(emulator.billed(batch)) == sorted(line["custom_id"] for line in lines if line["response"])


def test_a_restart_keeps_the_clock_offset(emulate: Emulate) -> None:
    emulator = emulate("--delay", "processing=3600")
    batch = emulator.submit("moved", 3)
    emulator.wait(batch, "in_progress")
    emulator.advance(3000)
    before = emulator.get("/__emu/clock")
    emulator.kill()
    emulator.start()
    after = emulator.get("/__emu/clock")
    assert after["offset"] == before["offset"] == 3000
    assert emulator.batch(batch)["status"] == "in_progress"
    emulator.advance(601)
    assert emulator.wait(batch)["status"] == "completed"


def test_files_and_results_expire_after_a_month(emulate: Emulate) -> None:
    emulator = emulate()
    batch = emulator.wait(emulator.submit("kept", 2))
    messages = emulator.wait(emulator.submit_messages("kept2", 2))
    output = f"/openai/v1/files/{batch['output_file_id']}/content"
    results = f"/anthropic/v1/messages/batches/{messages['id']}/results"
    emulator.advance(28.9 * DAY)
    assert emulator.call("GET", output).status == 200
    assert emulator.call("GET", results).status == 200
    emulator.advance(0.2 * DAY)
    assert emulator.call("GET", output).status == 200
    assert emulator.call("GET", results).status == 404
    archived = emulator.batch(messages["id"])
    assert archived["archived_at"]
    assert archived["results_url"] is None
    emulator.advance(1 * DAY)
    assert emulator.call("GET", output).status == 404
    assert emulator.call("GET", f"/openai/v1/files/{batch['input_file_id']}").status == 404
    assert emulator.batch(batch["id"])["status"] == "completed", "the batch itself does not expire"


@pytest.mark.parametrize("body", [b'{"advance": -1}', b'{"advance": "x"}', b"{}", b"", b'{"advance": 1e99}'])
def test_the_clock_only_moves_forward(emulate: Emulate, body: bytes) -> None:
    assert emulate().call("POST", "/__emu/clock", body).status == 400


def test_limits_apply_where_the_provider_applies_them(emulate: Emulate) -> None:
    emulator = emulate(
        *(
            argument
            for pair in ("requests=5", "bytes=5000", "enqueued_tokens=60", "creates_per_hour=6")
            for argument in ("--limit", pair)
        ),
        "--delay",
        "processing=60",
    )
    codes = []
    for nonce, n, text in (("many", 6, "x"), ("big", 4, "x" * 2000), ("fits", 5, "x"), ("more", 5, "x")):
        batch = emulator.submit(nonce, n, messages=[{"role": "user", "content": text}])
        seen = emulator.wait(batch, "failed", "in_progress")
        codes.append(seen["errors"]["data"][0]["code"] if seen["errors"] else None)
    assert codes == ["too_many_tasks", "file_too_large", None, "token_limit_exceeded"]
    emulator.advance(61)
    emulator.wait(emulator.get("/openai/v1/batches")["data"][1]["id"], "completed")
    assert emulator.wait(emulator.submit("again", 5), "failed", "in_progress")["status"] == "in_progress"
    last = emulator.upload("last", []).json()["id"]
    emulator.create(last)
    limited = emulator.create(last)
    assert (limited.status, limited.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    emulator.advance(3601)
    assert emulator.create(last).status == 200


def test_an_upload_beyond_the_file_limits_is_refused(emulate: Emulate) -> None:
    emulator = emulate("--limit", "files=2", "--limit", "upload_bytes=1000")
    first = emulator.upload("one", []).json()["id"]
    assert emulator.upload("two", []).status == 200
    full = emulator.upload("three", [])
    assert (full.status, full.json()["error"]["code"]) == (400, "file_quota_exceeded")
    assert emulator.call("DELETE", f"/openai/v1/files/{first}").status == 200
    assert emulator.upload_bytes("four-x.jsonl", b"x" * 1001).status == 413
    assert emulator.upload("four", []).status == 200


def accepted(**more: object) -> events.BatchAccepted:
    return events.BatchAccepted(
        t=0.0,
        wall=0.0,
        batch="b",
        dialect="openai",
        file="f",
        expires=DAY,
        nonce="n",
        **more,  # type: ignore[arg-type]
    )


def validated(n: int = 100) -> events.BatchValidated:
    return events.BatchValidated(t=10.0, wall=0.0, at=10.0, batch="b", n=n, model="echo")


CASES: list[tuple[str, EmulatedBatch, Delays, tuple[str, float, str, int] | None]] = [
    ("new", EmulatedBatch(accepted=accepted()), Delays(), ("validate", 0.0, "completed", 0)),
    ("slow validation", EmulatedBatch(accepted=accepted()), Delays(validating=5), ("validate", 5.0, "completed", 0)),
    ("validated", EmulatedBatch(accepted=accepted(), validated=validated()), Delays(), ("run", 10.0, "completed", 100)),
    (
        "slow run",
        EmulatedBatch(accepted=accepted(), validated=validated()),
        Delays(processing=100),
        ("run", 110.0, "completed", 100),
    ),
    (
        "expires",
        EmulatedBatch(accepted=accepted(), validated=validated()),
        Delays(processing=2 * (DAY - 10)),
        ("run", DAY, "expired", 50),
    ),
    (
        "cancelled half-way",
        EmulatedBatch(accepted=accepted(), validated=validated(), cancelled=60.0),
        Delays(processing=100),
        ("run", 60.0, "cancelled", 50),
    ),
    (
        "cancelled after its end",
        EmulatedBatch(accepted=accepted(), validated=validated(), cancelled=200.0),
        Delays(processing=100),
        ("run", 110.0, "completed", 100),
    ),
    (
        "stuck",
        EmulatedBatch(accepted=accepted(fault=events.BatchFault("stuck")), validated=validated()),
        Delays(),
        None,
    ),
    (
        "expires early",
        EmulatedBatch(accepted=accepted(fault=events.BatchFault("expire-half", 7.0)), validated=validated(9)),
        Delays(),
        ("run", 7.0, "expired", 4),
    ),
    ("deleted", EmulatedBatch(accepted=accepted(), deleted=True), Delays(), None),
]


@pytest.mark.parametrize(("batch", "delays", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_next_step_of_a_batch(
    batch: EmulatedBatch, delays: Delays, expected: tuple[str, float, str, int] | None
) -> None:
    step = next_step(batch, delays)
    assert (step and (step.do, step.at, step.outcome, step.answer_count)) == expected


def test_the_status_follows_from_events_and_time() -> None:
    new = EmulatedBatch(accepted=accepted())
    running = EmulatedBatch(accepted=accepted(), validated=validated())
    table: list[tuple[EmulatedBatch, float, str]] = [
        (new, 0.0, "validating"),
        (running, 50.0, "in_progress"),
        (running, 120.0, "finalizing"),
        (EmulatedBatch(accepted=accepted(), cancelled=1.0), 2.0, "cancelling"),
    ]
    for batch, now, expected in table:
        assert status(batch, now, Delays(processing=100)) == expected


@pytest.mark.parametrize(("now", "done"), [(9.0, 0), (10.0, 0), (35.0, 25), (109.9, 99), (110.0, 100), (1e9, 100)])
def test_requests_are_processed_at_a_constant_rate(now: float, done: int) -> None:
    assert answered_by(now, 10.0, 100, 100.0) == done
