"""Nothing is bought twice, and the journal knows every purchase."""

from collections import Counter

from tests.auditor.case import NOTHING_RAN, STEPS, Case, Check, step
from tests.auditor.evidence import Row, Submission

NO_BATCHES = "the provider has no batches"


def every_batch_is_on_record(case: Case) -> Check:
    """The journal names every batch that the provider accepted once, and names no other batch."""
    if case.calls_singly:
        return NO_BATCHES
    for batch in case.ours:
        if batch.nonce not in case.intents:
            yield f"batch {batch.id} carries {batch.nonce}, but the journal has no such intent"
            continue
        named = len(case.created.get(batch.id, ())) or int(batch.id in case.duplicates)
        if named > 1 or (named == 0 and not _is_being_looked_for(case, batch)):
            yield f"batch {batch.id} of {batch.nonce} is named {named} times"
        if case.states[batch.nonce] in NOTHING_RAN and not (
            batch.refused or batch.deleted or batch.id in case.found_late
        ):
            yield f"batch {batch.id} of {batch.nonce} was accepted, but the journal says that nothing ran"
    for remote in [*case.created, *case.duplicates]:
        if remote not in case.ledger.batches:
            yield f"batch {remote} is in the journal, but the provider never accepted it"
    for remote, event in case.duplicates.items():
        if remote not in case.copies:
            yield f"batch {remote} is noted as a copy of {event['nonce']}, but no fault made a copy"
    for nonce, count in Counter(case.ledger.batches[one].nonce for one in case.copies).items():
        if count > case.ledger.doubled[nonce] + case.late_listing:
            yield f"{nonce} has {count} copies, but faults made only {case.ledger.doubled[nonce]}"
    return f"{len(case.ours)} batches accepted, {len(case.copies)} copies"


def _is_being_looked_for(case: Case, batch: Submission) -> bool:
    """Whether the client still looks for a batch that it has not named, or has asked the user about it."""
    state = case.states[batch.nonce]
    told = [event for event in case.journal.kind("unresolved") if event["nonce"] == batch.nonce]
    if told and batch.id in told[-1]["candidates"]:
        return state == "unresolved" or (state == "void" and batch.deleted)
    return case.unfinished and state == "creating"


def no_foreign_batch_is_adopted(case: Case) -> Check:
    """No batch is adopted twice, no foreign batch is adopted, and none of our batches is noted as foreign."""
    if case.calls_singly:
        return NO_BATCHES
    seen: Counter[str] = Counter()
    for remote, nonces in case.created.items():
        batch = case.ledger.batches.get(remote)
        seen.update(nonces)
        if batch and (batch.owner != "client" or nonces != {batch.nonce}):
            yield f"batch {remote} belongs to {batch.nonce} but was adopted for {nonces}"
    yield from (f"{nonce} has {count} batches" for nonce, count in seen.items() if count > 1)
    foreign = [name for event in case.journal.kind("foreign") for name in (event["remote"], *event.get("more", ()))]
    for remote, event in case.duplicates.items():
        if remote in case.ledger.batches and case.ledger.batches[remote].nonce != event["nonce"]:
            yield f"batch {remote} is not a copy of {event['nonce']}"
    for remote in foreign:
        if case.ledger.batches[remote].owner == "client":
            yield f"batch {remote} is ours but was noted as foreign"
    found = sum(event["found"] for event in case.journal.kind("created"))
    return f"{len(case.created)} adopted, {found} of them found by search, {len(foreign)} foreign"


def nothing_is_bought_twice(case: Case) -> Check:
    """A row is bought again only after its earlier batch has ended without answering it.

    The journal shows it for the time of the intent, the ledger for the time of acceptance. A lost or given-up row is
    bought again at most once for each --rebuy-missing.
    """
    yield from case.purchases.wrong
    for row, count in case.purchases.rebought.items():
        if count > case.rebuys:
            yield f"row {row} was lost and bought again {count} times, with {case.rebuys} uses of --rebuy-missing"
    unanswered = case.purchases.lost | case.cut_off
    last: dict[Row, Submission] = {}
    mistakes = Counter(row for one in case.found_late for row in case.ledger.batches[one].rows())
    yield from (f"row {row} was called void and bought {count} times" for row, count in mistakes.items() if count > 1)
    for batch in sorted(case.originals, key=lambda one: one.place):
        for custom_id, row in zip(batch.ids, batch.rows(), strict=True):
            earlier = last.get(row)
            last[row] = batch
            if earlier is None:
                continue
            if earlier.ended is None or earlier.ended[1] > batch.place or earlier.ended[0] > batch.t:
                yield f"{custom_id} was accepted while {earlier.id} was running"
            elif f"{earlier.nonce}-{row[0]}-{row[1]}" in earlier.billed and (earlier.nonce, row[0]) not in unanswered:
                yield f"{custom_id} was accepted although {earlier.id} had answered it"
    return f"{len(last)} rows in {len(case.originals)} batches"


def nothing_is_billed_twice(case: Case) -> Check:
    """No row is billed for two answers, unless the first answer was lost or cut off by a short limit."""
    unanswered = case.purchases.lost | case.cut_off
    billed: Counter[Row] = Counter()
    for batch in case.originals:
        yield from (f"{one} was billed twice in {batch.id}" for one in batch.twice)
        for custom_id, row in zip(batch.ids, batch.rows(), strict=True):
            billed[row] += custom_id in batch.billed and (batch.nonce, row[0]) not in unanswered
    yield from (f"row {row} was billed {count} times" for row, count in billed.items() if count > 1)
    calls = Counter(call.id for call in case.ledger.calls)
    yield from (f"call {one} was billed {count} times" for one, count in calls.items() if count > 1)
    copies = sum(len(batch.billed) for batch in case.ours if batch.id in case.copies)
    return f"{sum(len(batch.billed) for batch in case.ours)} answers billed, {copies} of them in copies"


def events_are_in_order(case: Case) -> Check:
    """A batch goes through its states in order, and the client notes its intent before the provider accepts."""
    state: dict[str, str] = {}
    at: dict[tuple[str, str], float] = {}
    for event in case.journal.events:
        name, nonce = step(event), event.get("nonce", "")
        if name in STEPS:
            if state.get(nonce, "") not in STEPS[name] and not (case.lost_lines and name == "ended"):
                yield f"{nonce}: `{name}` follows `{state.get(nonce, '')}`"
            state[nonce] = name
            at[nonce, name] = event["at"]
        elif nonce and (nonce not in state or (name in ("late", "looked") and state[nonce] != "stored")):
            yield f"`{name}` of {nonce} follows `{state.get(nonce, '')}`"
    unknown = case.lost_lines or case.wrong_clock  # the time of a lost line is unknown
    for batch in case.ours if not unknown else ():
        for name in ("intent", "creating") if (batch.nonce, "adopted") not in at else ():
            if at.get((batch.nonce, name), batch.wall + 1) > batch.wall:
                yield f"batch {batch.id} was accepted before `{name}` of {batch.nonce} was written"
    for nonce, batch in case.bought.items() if not case.wrong_clock else ():
        if (nonce, "stored") in at and (batch.ended is None or at[nonce, "stored"] < batch.ended[2]):
            yield f"{nonce} was stored before {batch.id} had ended"
    return f"{len(state)} batches in {len(case.journal.events)} events"
