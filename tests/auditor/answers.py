"""The client keeps every answer it has paid for, once and unchanged, and keeps no other answers."""

from collections import Counter

from tests.auditor.case import SETTLED, TRIES, Case, Check, Problems
from tests.auditor.evidence import ALTERS, LOSES, REFUSES, SILENT, SPOILS, Row, Submission, digest, parsed, rows_of


def every_billed_answer_is_kept(case: Case) -> Check:
    """Every billed answer is kept with the same text, unless its line was damaged or never handed out."""
    faults = 0
    for batch in case.originals:
        faults += len(batch.faults)
        if case.still_open(batch.nonce) or case.states.get(batch.nonce) == "unresolved":
            continue
        missing = case.stored[batch.nonce].missing if batch.nonce in case.stored else set()
        for custom_id, text in batch.billed.items():
            answer, fault, row = case.kept.get(custom_id), batch.faults.get(custom_id), parsed(custom_id)
            if answer is None and (batch.nonce, row[0]) in case.cut_off | case.retried:
                continue
            if answer is None:
                lost = fault in LOSES or row in case.rows_kept or not case.handed_out(batch, custom_id)
                if row[0] not in missing or not lost:
                    yield f"{custom_id} was billed and is not kept"
            elif answer["outcome"] in ("failed", "empty") and fault in SPOILS:
                continue
            elif answer["outcome"] == "failed":
                yield f"{custom_id} was billed and is kept as failed"
            elif not _is_the_text(batch, answer["text"] or "", text, fault):
                yield f"{custom_id} is kept with another text than the billed one"
    yield from _charged_calls_are_kept(case)
    return f"{len(case.kept)} answers kept, {faults} lines damaged by the provider"


def _is_the_text(batch: Submission, said: str, billed: str, fault: str | None) -> bool:
    """Whether a kept text is the billed one, or the billed one as a known fault changes it."""
    texts = {billed}
    match fault:
        case "line-swapped":
            texts = {batch.billed[one] for one, what in batch.faults.items() if what == fault}
        case "line-choices-many" if said == 3 * said[: len(said) // 3]:
            said = said[: len(said) // 3]
        case "line-invalid-utf8" | "line-surrogate":
            return said.startswith("cut here: ")
    return digest(said.encode())[:12] in texts


def _charged_calls_are_kept(case: Case) -> Problems:
    """Single calls: a billed call without a result line is noted as lost, or is the trial question."""
    readings = [one for lines in case.readings.values() for found in lines.values() for one in found if one.call]
    for call, count in Counter(one.call for one in readings if case.calls_singly).items():
        if count > 1:
            yield f"{count} answers claim to be call {call}"
    unnoted = len(case.first_questions)
    if unnoted > len(case.journal.kind("tried")) and not case.unfinished and not case.lost_lines:
        yield f"{unnoted} calls were billed, are not kept, and were not noted as lost"


def every_kept_answer_was_billed(case: Case) -> Check:
    """Every kept answer was billed in the batch of its nonce, and the provider reported every kept failure.

    If the provider refused the whole batch, the lines it named are kept as failed, and no others are kept.
    """
    ids = {nonce: set(batch.ids) for nonce, batch in case.bought.items()}
    calls = {call.id: call for call in case.ledger.calls}
    for custom_id, row in case.kept.items():
        nonce = custom_id.partition("-")[0]
        batch = case.bought.get(nonce)
        if case.calls_singly:
            found = [calls[one.call] for one in case.readings[nonce].get(custom_id, []) if one.call in calls]
            if row["outcome"] != "failed" and digest((row["text"] or "").encode())[:12] not in {c.text for c in found}:
                yield f"{custom_id} is kept, but no call with that text was billed"
        elif batch and batch.blamed:
            asked = rows_of(case.intents[nonce]["ranges"])
            if row["outcome"] != "failed" or asked.index(row["id"]) + 1 not in batch.blamed:
                yield f"{custom_id} is kept, but the provider did not name it when it refused the batch"
        elif batch is None or custom_id not in ids[nonce]:
            yield f"{custom_id} is kept, but no batch of that nonce contained it"
        elif custom_id not in batch.billed and not (
            row["outcome"] in ("failed", "filtered") and batch.faults.get(custom_id) in REFUSES
        ):
            yield f"{custom_id} is kept as {row['outcome']}, but the provider never reported that"
    return f"{len(case.answers)} batches"


def answers_belong_to_their_prompts(case: Case) -> Check:
    """Every answer is the answer to its row's prompt: the `echo` persona answers with the prompt's digest."""
    faults = {one: fault for batch in case.ours for one, fault in batch.faults.items()}
    checked = 0
    for custom_id, row in case.kept.items():
        if row["outcome"] != "answered" or faults.get(custom_id) in ALTERS | SILENT:
            continue
        checked += 1
        said, echo = row["text"] or "", case.echo(row["id"])
        if said != echo and not (custom_id in faults and said.endswith(echo)):  # some faults put characters before it
            yield f"{custom_id} is not the answer to its prompt"
    return f"{checked} answers belong to their prompts"


def no_row_has_two_answers(case: Case) -> Check:
    """No row has two answers."""
    yield from (f"row {row} has {count} answers" for row, count in case.rows_kept.items() if count > 1)
    return f"{len(case.rows_kept)} rows with one answer"


def every_row_is_accounted_for(case: Case) -> Check:
    """Answered, again and missing rows together are the rows of each batch, and `status --json` agrees."""
    for nonce, stored in case.stored.items():
        answered = [row["id"] for row in case.answers[nonce]]
        if sorted([*answered, *stored.again, *stored.missing]) != sorted(rows_of(case.intents[nonce]["ranges"])):
            yield f"{nonce}: answered, again and missing rows are not the rows it asked"
        if not {row for one, row in case.retried if one == nonce} <= set(stored.again):
            yield f"{nonce}: rows were released that are not to be asked again"
        outcomes = Counter(row["outcome"] for row in case.answers[nonce])
        if stored.answered != len(answered) or (stored.counted and stored.outcomes != outcomes):
            yield f"{nonce}: {stored.answered} answers are noted, {dict(stored.outcomes)}, but {dict(outcomes)} kept"
        for row in stored.missing:  # every_billed_answer_is_kept judges the billed ones
            custom_id = f"{nonce}-{row}-{case.intents[nonce]['rep']}"
            if nonce in case.bought and custom_id in case.bought[nonce].faults:
                continue
            if custom_id in case.readings[nonce] and parsed(custom_id) not in case.rows_kept:
                yield f"{custom_id} is noted as missing, but its result line exists"
    asked = case.journal.kind("asked")[-1]
    wanted = {(r, k) for r in range(asked["items"] * case.manifest.variants) for k in range(asked["repetitions"])}
    ends = {(row["id"], row["rep"]): row["outcome"] for row in case.kept.values()}
    ends = {row: end for row, end in ends.items() if row in wanted}
    missing = (_lost_or_given_up(case) & wanted) - ends.keys()
    if case.status is not None:
        count = Counter(ends.values())
        mine = {"asked": len(wanted), "answered": count["answered"] + count["truncated"], "missing": len(missing)}
        mine |= {"refused": count["refused"] + count["filtered"], "failed": count["failed"]}
        reported = {name: case.status[name] for name in mine}
        if reported != mine:
            yield f"status says {reported}, the files say {mine}"
    states = Counter(case.states.values())
    if not case.unfinished and set(states) - SETTLED - {"unresolved"}:
        yield f"the run has stopped with batches open: {dict(states)}"
    return f"{len(ends)} of {len(wanted)} answered or failed, {len(missing)} missing, {dict(states)}"


def _lost_or_given_up(case: Case) -> set[Row]:
    """Rows whose answer is lost, or that stayed unanswered in `TRIES` batches."""
    reps = {nonce: event["rep"] for nonce, event in case.intents.items()}
    tries = Counter(
        (row, reps[nonce])
        for nonce, stored in case.stored.items()
        for row in stored.again
        if (nonce, row) not in case.retried and row not in stored.cut_off
    )
    lost = {(row, reps[nonce]) for nonce, stored in case.stored.items() for row in stored.missing}
    return lost | {row for row in tries if tries[row] >= TRIES}


def files_match_their_digests(case: Case) -> Check:
    """The journal's chain and the files' digests are right, and the answers are exactly those of the result lines."""
    yield from [*case.journal.damage, *case.manifest.damage]
    if case.journal.torn and not case.unfinished:
        yield "the journal's last line is torn"
    faults = {one: fault for batch in case.ours for one, fault in batch.faults.items()}
    lines = 0
    for nonce, stored in case.stored.items():
        for part in stored.parts:
            content = case.folder.content(part["file"])
            if (len(content), digest(content)) != (part["bytes"], part["sha256"]):
                yield f"{part['file']} does not match its digest in the journal"
        for row in rows_of(case.intents[nonce]["ranges"]):
            custom_id = f"{nonce}-{row}-{case.intents[nonce]['rep']}"
            found = [one for one in case.readings[nonce].get(custom_id, []) if one.text is not None]
            answer = case.kept.get(custom_id)
            lines += len(found)
            if custom_id in faults or (not found and custom_id in case.without_line):
                continue  # the provider damaged this line; its text is compared with the ledger
            if (nonce, row) in case.cut_off:
                continue
            if answer is None and found and parsed(custom_id) not in case.rows_kept:
                yield f"{custom_id} is in the result lines but not in the answers"
            elif answer and (found or answer["outcome"] != "failed") and not any(o.is_kept_as(answer) for o in found):
                yield f"{custom_id} differs from its result line"
    return f"{len(case.journal.events)} events, {lines} result lines"
