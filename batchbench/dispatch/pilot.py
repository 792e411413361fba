"""The pilot: ask a few prompts of the manifest as single calls before the first batch of a run that costs money.

Its questions are in the journal like purchases: reserved before they are sent, and never sent twice. Their answers are
kept there as evidence. The run goes on if they can be read and cost about what was estimated.
"""

import anyio
import msgspec
from anyio import to_thread

from batchbench.analyze.quality import Quality, problem
from batchbench.core.money import Price, dollars
from batchbench.dispatch.judge import judge_stored, question_count, run_quality, unreadable
from batchbench.dispatch.state import Dispatch, Stop
from batchbench.errors import BatchbenchError, BudgetReached
from batchbench.providers.interface import Line
from batchbench.runs.events import Failed, Passed, Piloted, Tried
from batchbench.runs.ingest import answer_frame
from batchbench.runs.journal import RunState
from batchbench.transport.replies import LostReply, Refused, Unsent, failure

PART_OF_BUDGET = 10  # a pilot reserves at most a tenth of the money that is left, but always asks one question
AT_ONCE = 4  # questions in flight
TRIES = 5  # of a question that the provider refuses for a moment
MAX_PROBLEMS = 3  # questions at the beginning that may get no answer: a refused prompt, an overloaded server
QUICK = 30.0  # seconds; a question without an answer for longer is not followed by another one
MAX_COST_RATIO = 3  # answers may cost this much more than estimated
NOTABLE_COST = 10_000  # micro-dollars; a run that costs less in total may cost any multiple of its estimate

Unanswered = Refused | LostReply | msgspec.DecodeError  # why a question has no answer
Question = tuple[int, str, int]  # row, prompt, reserve in micro-dollars


async def check_answers(dispatch: Dispatch) -> Stop:
    """Ask the pilot and judge all answers so far, once per process and before anything is bought."""
    if dispatch.inspected or not dispatch.account.unasked:
        return None
    dispatch.inspected = True
    return await _pilot(dispatch) or await judge_stored(dispatch)


async def _pilot(dispatch: Dispatch) -> Stop:
    """Ask the questions that have no reply yet, unless a batch was bought already; judge all replies."""
    state, plan = dispatch.run.state, dispatch.plan
    if plan.pilot != "calls" or _bought(state):
        return None
    if stop := dispatch.account.copied():
        return stop
    refused = await _ask_all(dispatch)
    lines = _answers(state)
    answers = answer_frame(list(lines), list(lines.values()), rep=0)
    found = await to_thread.run_sync(run_quality, dispatch.run, answers)
    thought = sum(line.reasoning_tokens for line in lines.values()) // max(1, len(lines))
    found = found + Quality(answers=refused, refused=refused, reasoning_tokens=thought)
    cause = problem(found, Quality(), dispatch.run.target.max_tokens) or _cost_problem(dispatch)
    verdict = Piloted(at=dispatch.now(), problem=cause or "", answers=found.answers)
    if state.pilot is None or (state.pilot.problem, state.pilot.answers) != (verdict.problem, verdict.answers):
        await dispatch.append(verdict)
    if not cause or plan.anyway:
        return None
    spent = dollars(state.spent())
    message = f"pilot of {found.answers} prompts: {cause}. No batch was bought, {spent} spent; --anyway continues"
    return unreadable(message, answers)


def _bought(state: RunState) -> bool:
    """Whether a batch was sent to the provider. From then on the answers of batches are judged."""
    return any(batch.state not in ("intent", "uploaded", "rejected") for batch in state.batches.values())


def pilot_rows(rows: int, variants: int) -> list[int]:
    """The rows that a pilot asks: one prompt of each of the first items, each time another variant."""
    items = rows // variants
    chosen = [number * variants + number % variants for number in range(min(items, question_count(rows)))]
    return chosen or [0]


def pilot_cost(rows: int, row_cost: int, *, half_price: bool) -> int:
    """Micro-dollars, an upper bound for the pilot of a run whose requests cost at most `row_cost` in a batch."""
    return question_count(rows) * row_cost * (2 if half_price else 1)


# -- the questions -----------------------------------------------------------------------------------------


async def _ask_all(dispatch: Dispatch) -> int:
    """Ask the questions without an answer; returns how many were refused. One whose reply was lost is left out."""
    state = dispatch.run.state
    questions = await _chosen(dispatch)
    problems: list[Unanswered] = []
    # One at a time: what is wrong with every request shows in the first call.
    while questions and not state.passed and len(problems) < MAX_PROBLEMS:
        asked_at = dispatch.uptime()
        if (unanswered := await _ask(dispatch, *questions.pop(0))) is None:
            break
        problems.append(unanswered)
        if isinstance(unanswered, LostReply) and len(problems) < MAX_PROBLEMS:
            if dispatch.uptime() - asked_at > QUICK:
                break
            await dispatch.pause(dispatch.limits.poll[0], f"the pilot: no answer yet ({unanswered})")
    if not state.passed:
        raise _no_answer(problems)
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def limited(question: Question) -> None:
        async with limiter:
            if not _overpriced(dispatch) and (unanswered := await _ask(dispatch, *question)):
                problems.append(unanswered)

    async with anyio.create_task_group() as group:
        for question in questions:
            group.start_soon(limited, question)
    return sum(isinstance(unanswered, Refused) for unanswered in problems)


async def _chosen(dispatch: Dispatch) -> list[Question]:
    """The questions to ask, as many as a part of the budget allows."""
    state = dispatch.run.state
    done = {row for row, answer in _answers(state).items() if not answer.again}
    done |= {question.row for question in state.tried if question.row is not None}
    rows = [row for row in pilot_rows(dispatch.plan.rows, dispatch.run.manifest.variants) if row not in done]
    affordable = dispatch.account.budget.affordable(dispatch.account)
    allowance = None if affordable is None else affordable // PART_OF_BUDGET
    chosen: list[Question] = []
    for row in rows:
        prompt = (await to_thread.run_sync(dispatch.run.prompts, row, row + 1))[0]
        cost = _reserve(dispatch, prompt)
        if allowance is not None and (chosen or state.passed) and cost > allowance:
            break
        chosen.append((row, prompt, cost))
        allowance = None if allowance is None else allowance - cost
    return chosen


def _no_answer(problems: list[Unanswered]) -> BatchbenchError:
    """Why the pilot has no answer at all."""
    if problems and isinstance(problems[-1], Refused):
        if problems[-1].verdict == "fatal":
            return failure(problems[-1])
        return BatchbenchError(
            f"the provider refuses the pilot's questions ({problems[-1]}): correct this and run the same command; if "
            "the model can be asked only in batches, pass --pilot batch"
        )
    reason = f" ({problems[-1]})" if problems else ""
    return BatchbenchError(
        f"the pilot's questions got no clear answer{reason}: check the server and what is between here and there, then "
        "run the same command; --timeout gives a slow server more time, --pilot none leaves the pilot out"
    )


async def _ask(dispatch: Dispatch, row: int, prompt: str, reserve: int) -> Unanswered | None:
    """Ask one question; returns why the question has no answer if it has none.

    A refusal costs nothing, so a temporary one is followed by another try.
    """
    for attempt in range(1, TRIES + 1):
        async with dispatch.account.budget.reserving:
            affordable = dispatch.account.budget.affordable(dispatch.account)
            if affordable is not None and reserve > affordable:
                if dispatch.run.state.passed:
                    return None
                raise BudgetReached(
                    f"{dollars(max(0, affordable))} of the budget is left, and the first question of the pilot may "
                    f"cost {dollars(reserve)}: raise --budget and run the same command"
                )
            await dispatch.append(Tried(at=dispatch.now(), reserve=reserve, row=row))
        unanswered = await _send(dispatch, row, prompt, reserve)
        if not isinstance(unanswered, Refused) or unanswered.verdict not in ("retry", "slot", "fatal"):
            return unanswered
        if unanswered.problem.status == 403:
            return unanswered  # it may be about the prompt: the other questions show that
        if unanswered.verdict == "fatal" or (attempt == TRIES and not dispatch.run.state.passed):
            raise failure(unanswered)
        if attempt < TRIES:
            seconds = unanswered.retry_after or dispatch.limits.poll[0] * attempt
            await dispatch.pause(seconds, f"the pilot: the provider refuses for now ({unanswered})")
    return None


async def _send(dispatch: Dispatch, row: int, prompt: str, reserve: int) -> Unanswered | None:
    """Send a question that is in the journal; its reply, also an unusable one, is on disk when this returns."""
    with anyio.CancelScope(shield=True):
        await dispatch.account.write_mark()
        try:
            answer = await dispatch.provider.ask(dispatch.calls, dispatch.run.target, prompt)
        except Refused as refused:
            await dispatch.append(Failed(at=dispatch.now(), reason=str(refused), row=row))
            return refused
        except Unsent as error:
            await dispatch.append(Failed(at=dispatch.now(), reason=f"not sent: {error}", row=row))
            raise BatchbenchError(
                f"the provider cannot be reached ({error}): run the same command again later"
            ) from None
        except (LostReply, msgspec.DecodeError) as error:
            return error  # it may have been charged: its reserve stays, and it is not asked again
        cost = _price(dispatch).cost(answer.input_tokens, answer.output_tokens) if answer.usage else reserve
        size = len(prompt.encode()) + dispatch.run.target.other_bytes
        await dispatch.append(Passed(at=dispatch.now(), cost=cost, row=row, answer=answer, input_bytes=size))
    return None


def _price(dispatch: Dispatch) -> Price:
    """The price of a single call."""
    return dispatch.plan.price.doubled() if dispatch.provider.half_price else dispatch.plan.price


def _reserve(dispatch: Dispatch, prompt: str) -> int:
    target = dispatch.run.target
    return _price(dispatch).bound(len(prompt.encode()) + target.other_bytes, target.max_tokens)


# -- the verdict -------------------------------------------------------------------------------------------


def _answers(state: RunState) -> dict[int, Line]:
    return {
        question.row: question.answer
        for question in state.passed
        if question.row is not None and question.answer is not None
    }


def _cost_problem(dispatch: Dispatch) -> str | None:
    """A problem if an answer costs more than it can, or would cost much more in a batch than estimated."""
    if problem := _overpriced(dispatch):
        return problem
    expected, todo = dispatch.plan.expected_row_cost, dispatch.account.todo()
    costs = [question.cost for question in dispatch.run.state.passed if question.answer and question.answer.usage]
    mean = sum(costs) / max(1, len(costs)) / (2 if dispatch.provider.half_price else 1)
    if not expected or mean <= MAX_COST_RATIO * expected or mean * todo < NOTABLE_COST:
        return None
    return (
        f"an answer costs {mean / expected:.1f} times its estimate: the rest of the run would cost about "
        f"{dollars(round(mean * todo))} instead of {dollars(round(expected * todo))}; lower --max-tokens, --effort or "
        "--sample-k"
    )


def _overpriced(dispatch: Dispatch) -> str | None:
    """A problem if a question cost more than was reserved for it: then a budget could not be kept."""
    limit = dispatch.plan.max_row_cost * (2 if dispatch.provider.half_price else 1)
    highest = max((question.cost for question in dispatch.run.state.passed), default=0)
    if highest <= limit:
        return None
    return (
        f"an answer cost {dollars(highest)}, more than the {dollars(limit)} that it could have cost: check --price, "
        "and whether the server respects the token limit"
    )
