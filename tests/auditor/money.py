"""The client spends no more than its budget, and knows what it has spent."""

import math

from tests.auditor.case import Case, Check, Problems
from tests.auditor.evidence import ABSURD, LOSES, SPOILS, UNPRICED, rows_of

WINDOW = 86_400.0  # seconds for which a void batch keeps its reserve


def the_budget_holds(case: Case) -> Check:
    """At every moment billed + the maximum cost of running batches <= budget, by the ledger and by the journal.

    The noted cost is the billed cost. For rows whose cost the client cannot know, it is at most their maximum.
    """
    yield from _journal_within_budget(case)
    yield from _noted_costs_are_true(case)
    yield from _first_questions_are_counted(case)
    asks = case.journal.kind("asked")
    billed = before = now = highest = 0
    running: dict[str, int] = {}
    for event in case.ledger.events:
        batch = case.ledger.batches.get(event.get("batch", ""))
        asked = next((one for one in reversed(asks) if one["at"] <= event["wall"]), asks[0])
        if event.get("batch") == "sync":
            billed += event["cost"]
        elif batch is None or batch.owner != "client" or batch.id in case.copies:
            continue
        elif event["event"] == "accepted":
            running[batch.id] = sum(case.bound(row, asked["rates"]) for row, _ in batch.rows())
        elif event["event"] == "billed":
            billed += event["cost"]
            running[batch.id] -= sum(case.bound(int(one.split("-")[1]), asked["rates"]) for one in event["ids"])
        elif event["event"] in ("ended", "failed"):
            running[batch.id] = 0
        budget = asked["budget"] if case.budget is None else case.budget
        before, now = now, billed + sum(running.values())
        highest = max(highest, now)
        if budget is not None and now > max(budget, before):  # a lowered budget must not let it grow
            yield f"{billed} billed and {now - billed} running exceed {budget} at {event['t']}"
    return f"{billed} micro-dollars billed, at most {highest} together with running batches"


def _journal_within_budget(case: Case) -> Problems:
    """Every new reserve fits into the budget, together with all that is spent or reserved."""
    rates, budget = {}, None
    costs: dict[str, int] = {}
    held: dict[str, int] = {}
    voids: dict[str, float] = {}
    trials: list[int] = []
    for event in case.journal.events:
        nonce, name = event.get("nonce", ""), event["event"]
        match name:
            case "asked":
                rates, budget = event["rates"], event["budget"]
            case "intent":
                held[nonce] = event["reserve"]
                least = [case.bound(row, rates) for row in rows_of(event["ranges"])]
                if event["reserve"] < sum(least) or event["most"] < max(least):
                    yield f"{nonce} reserves {event['reserve']}, {event['most']} per row, but may cost {sum(least)}"
            case "duplicate":
                held[event["remote"]] = event["reserve"]
                if event["reserve"] < case.intents[nonce]["reserve"]:
                    yield f"{event['remote']} may cost as much as {nonce}, but only {event['reserve']} is reserved"
            case "tried":
                trials.append(event["reserve"])
            case "passed" | "failed":
                trials.pop()
                costs["trials"] = costs.get("trials", 0) + event.get("cost", 0)
            case "stored" | "rejected" | "late":
                costs[nonce] = event.get("cost", 0)
                held.pop(nonce, None)
            case "void":
                voids[nonce] = event["at"]
        if name in ("intent", "tried") and budget is not None:
            spent, reserved = sum(costs.values()), sum(trials)
            reserved += sum(part for one, part in held.items() if event["at"] < voids.get(one, math.inf) + WINDOW)
            if spent + reserved > budget:
                yield f"{nonce or 'a trial'}: {spent} spent and {reserved} reserved exceed {budget}"


def _noted_costs_are_true(case: Case) -> Problems:
    """The cost noted with results is the billed cost, or an upper bound where the cost is not known."""
    calls = {call.id: call.cost for call in case.ledger.calls}
    for event in case.journal.kind("stored", "late"):
        nonce, intent = event["nonce"], case.intents[event["nonce"]]
        unsure = {f"{nonce}-{row}-{intent['rep']}" for row in rows_of(event["missing"])}
        batch = case.bought.get(nonce)
        if case.calls_singly:
            lines = [one for found in case.readings[nonce].values() for one in found]
            costs = {one.id: calls.get(one.call, 0) for one in lines}
            unsure |= {one.id for one in lines if one.lost}
        elif batch is None:
            continue  # every_batch_is_on_record reports it
        else:
            costs = batch.costs
            unsure |= {one for one, fault in batch.faults.items() if fault in LOSES | SPOILS | UNPRICED}
            if ABSURD & set(batch.faults.values()):
                continue
        least = sum(costs.values())
        most = sum(cost for one, cost in costs.items() if one not in unsure) + len(unsure) * intent["most"]
        if not least <= event["cost"] <= max(least, most):
            yield f"{nonce} was billed {least} and can have cost at most {most}, but {event['cost']} is noted"


def _first_questions_are_counted(case: Case) -> Problems:
    """Trial questions cost what is noted, or at most their reserve if no answer came; so do all calls together."""
    tried, ended = case.journal.kind("tried"), len(case.journal.kind("passed", "failed"))
    passed = sum(event["cost"] for event in case.journal.kind("passed"))
    most = passed + sum(event["reserve"] for event in tried[ended:])
    asked = sum(call.cost for call in case.first_questions)
    if not passed <= asked <= most:
        yield f"trial questions were billed {asked}, but {passed} is noted"
    noted = {event["nonce"]: event["cost"] for event in case.journal.kind("stored", "late")}
    billed = sum(call.cost for call in case.ledger.calls)
    if case.calls_singly and not case.unfinished and billed > sum(noted.values()) + most:
        yield f"calls were billed {billed}, but {sum(noted.values()) + most} is noted"
