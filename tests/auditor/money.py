"""The client spends no more than its budget, and knows what it has spent."""

import math

from tests.auditor.case import Case, Check, Problems
from tests.auditor.evidence import ABSURD, LOSES, SPOILS, UNPRICED, Json, digest, rows_of


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
        rates: Json = case.rates[batch.nonce] if batch and batch.nonce in case.rates else asked["rates"]
        if event.get("batch") == "sync":
            billed += event["cost"]
        elif batch is None or batch.owner != "client" or batch.id in case.copies:
            continue
        elif event["event"] == "accepted":
            running[batch.id] = sum(case.bound(row, rates, batch.nonce) for row, _ in batch.rows())
        elif event["event"] == "billed":
            billed += event["cost"]
            running[batch.id] -= sum(case.bound(int(one.split("-")[1]), rates, batch.nonce) for one in event["ids"])
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
    trials: dict[int | None, int] = {}  # reserves of the pilot's questions without a reply, by row
    bought: dict[str, Json] = {}  # rates by nonce; a batch that is found again after it was void keeps its rates
    for event in case.journal.events:
        nonce, name = event.get("nonce", ""), event["event"]
        match name:
            case "asked":
                rates, budget = event["rates"], event["budget"]
            case "intent":
                held[nonce] = event["reserve"]
                own = bought.setdefault(nonce, rates)
                if case.rates[nonce] != own:
                    yield f"{nonce} is bought at other rates than those of the plan before it"
                least = [case.bound(row, own, nonce) for row in rows_of(event["ranges"])]
                if event["reserve"] < sum(least) or event["most"] < max(least):
                    yield f"{nonce} reserves {event['reserve']}, {event['most']} per row, but may cost {sum(least)}"
            case "duplicate":
                held[event["remote"]] = event["reserve"]
                if event["reserve"] < case.intents[nonce]["reserve"]:
                    yield f"{event['remote']} may cost as much as {nonce}, but only {event['reserve']} is reserved"
            case "tried":
                trials[event.get("row")] = event["reserve"]
            case "passed" | "failed":
                trials.pop(event.get("row"))
                costs["trials"] = costs.get("trials", 0) + event.get("cost", 0)
            case "stored" | "rejected" | "late":
                costs[nonce] = event.get("cost", 0)
                held.pop(nonce, None)
            case "cleared":  # until then a void batch may have been accepted after all
                held.pop(nonce)
        if name in ("intent", "tried") and budget is not None and not event.get("remote"):
            spent, reserved = sum(costs.values()), sum(trials.values())
            reserved += sum(held.values())
            if spent + reserved > budget:
                yield f"{nonce or 'the pilot'}: {spent} spent and {reserved} reserved exceed {budget}"


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
            unsure |= case.unread & batch.costs.keys()
            if ABSURD & set(batch.faults.values()):
                continue
        least = sum(costs.values())
        most = sum(cost for one, cost in costs.items() if one not in unsure) + len(unsure) * intent["most"]
        if not least <= event["cost"] <= max(least, most):
            yield f"{nonce} was billed {least} and can have cost at most {most}, but {event['cost']} is noted"


def reserves_follow_the_answers(case: Case) -> Check:
    """A short limit is in the requests, what it cuts off is asked again without one, and input is reserved by evidence.

    Tokens per byte, where input is reserved by them, are not below those of any earlier answer, and are used only while
    no answer has exceeded its reserve.
    """
    for nonce, batch in case.bought.items():
        limit = case.limits[nonce]
        if limit and batch.longest > limit:
            yield f"{nonce} has an answer of {batch.longest} tokens, but its limit is noted as {limit}"
    for nonce, stored in case.stored.items():
        for row in stored.cut_off:
            if (nonce, row) not in case.cut_off:
                yield f"row {row} of {nonce} is noted as cut off, but its result line is not"
    for custom_id, kept in case.kept.items():
        nonce = custom_id.partition("-")[0]
        lines = case.readings[nonce].get(custom_id, [])
        if case.limits[nonce] and kept["outcome"] in ("truncated", "empty") and any(line.cut for line in lines):
            yield f"{custom_id} was cut off by a short limit, but is kept as the answer"
    highest, exceeded, cut = 0.0, False, set()
    for event in case.journal.events:
        nonce = event.get("nonce", "")
        if event["event"] == "intent":
            ratio, rep = case.ratios[nonce], event["rep"]
            if case.limits[nonce] and (again := [row for row in rows_of(event["ranges"]) if (row, rep) in cut]):
                yield f"{nonce} asks row {again[0]} with a short limit again"
            if ratio is not None and (exceeded or ratio < highest or not highest):
                yield f"{nonce} reserves {ratio} tokens per byte, but an answer had {highest}"
        elif event["event"] == "stored":
            cut |= {(row, case.intents[nonce]["rep"]) for row in rows_of(event.get("cut_off", []))}
            for answer in case.answers[nonce] if case.learns else []:
                size = case.size(answer["id"])
                highest = max(highest, answer["input_tokens"] / size)
                exceeded |= answer["input_tokens"] > math.ceil(size * (case.ratios[nonce] or 1) * 1.05) + 32
        elif event["event"] == "passed" and event.get("row") is not None and event.get("answer"):
            highest = max(highest, event["answer"]["input_tokens"] / case.size(event["row"]))
    short = sum(limit is not None for limit in case.limits.values())
    return f"{short} batches with a short limit, {len(case.cut_off)} answers cut off"


def _first_questions_are_counted(case: Case) -> Problems:
    """The pilot's questions cost what is noted, or at most their reserve without a reply; so do all calls together."""
    charged = {call.text: call.cost for call in case.ledger.calls}
    open_questions: dict[int | None, int] = {}  # by row: the cost of a question without a reply
    for event in case.journal.kind("tried", "passed", "failed"):
        row = event.get("row")  # none in journals of older versions
        cost = None if row is None else charged.get(digest(case.echo(row).encode())[:12])
        if event["event"] == "tried":
            open_questions[row] = event["reserve"] if cost is None else min(cost, event["reserve"])
            continue
        open_questions.pop(row)
        if event["event"] == "passed" and cost not in (None, event["cost"]):
            yield f"the pilot's question about row {row} was billed {cost}, but {event['cost']} is noted"
    passed = sum(event["cost"] for event in case.journal.kind("passed"))
    most = passed + sum(open_questions.values())
    asked = sum(call.cost for call in case.first_questions)
    if not passed <= asked <= most and not case.lost_lines:
        yield f"the pilot was billed {asked}, but {passed} is noted"
    noted = {event["nonce"]: event["cost"] for event in case.journal.kind("stored", "late")}
    billed = sum(call.cost for call in case.ledger.calls)
    if case.calls_singly and not case.unfinished and billed > sum(noted.values()) + most:
        yield f"calls were billed {billed}, but {sum(noted.values()) + most} is noted"
