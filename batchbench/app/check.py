"""Check what a run needs before anything is bought. All calls are free, except the trial question of `pay`."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Literal

import anyio
import msgspec

from batchbench.app.contact import Contact, connected, find_contact, make_client, price
from batchbench.app.estimate import estimate_run
from batchbench.app.plan import chosen, compile_probe, make_target, plan_run, provider_of
from batchbench.app.requests import Options, Selection, Voice
from batchbench.core.money import MILLION, dollars
from batchbench.core.store import Store, storage_warning
from batchbench.errors import BatchbenchError, KeyRefusedError, UsageError
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers import prices
from batchbench.providers.interface import Calls, ModelInfo
from batchbench.providers.target import Target
from batchbench.transport.client import Client
from batchbench.transport.replies import LostReply, ProviderError, Refused, Unsent, failure

Level = Literal["ok", "warning", "error"]
PATIENCE = 20.0  # seconds until an address that does not answer is reported
MIN_FREE = 1 << 30  # bytes on the disk
MAX_SKEW = 120.0  # seconds between the clocks
OLD_PRICES = 90  # days
RECENT = 30 * 86_400.0  # seconds; older batches have ended
QUESTION = "Please answer with the word OK."


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    subject: str  # the model, or `home`
    check: str
    level: Level
    text: str
    exit_code: int = 0  # of an error


def check(selection: Selection, options: Options, store: Store, voice: Voice, *, pay: bool) -> list[Finding]:
    """Check the home, and each model: name, price, key, address, model, batches, clock. Errors do not stop the rest."""
    found = list(_home(store))
    for name in dict.fromkeys(selection.models):
        found += anyio.run(_Model(name, selection, options, store, voice).findings, pay)
    return found


def _home(store: Store) -> Iterator[Finding]:
    writable = os.access(store.home, os.W_OK) if store.home.exists() else os.access(store.home.parent, os.W_OK)
    text = f"{store.home.absolute()} " + (
        "can be written to" if writable else "cannot be written to: choose another --home"
    )
    yield Finding(
        subject="home", check="folder", level="ok" if writable else "error", text=text, exit_code=1 - writable
    )
    existing = next(folder for folder in (store.home.absolute(), *store.home.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**30:,.1f} GiB free" + (" is little for a large run" if free < MIN_FREE else "")
    yield Finding(subject="home", check="disk", level="ok" if free >= MIN_FREE else "warning", text=text)
    if warning := storage_warning(existing):
        yield Finding(subject="home", check="disk", level="warning", text=warning)


class _Model:
    """The checks of one model."""

    def __init__(self, name: str, selection: Selection, options: Options, store: Store, voice: Voice) -> None:
        self._name, self._selection, self._options, self._store, self._voice = name, selection, options, store, voice
        self._found: list[Finding] = []

    def _add(self, check: str, text: str, level: Level = "ok", code: int = 0) -> None:
        self._found.append(Finding(subject=self._name, check=check, level=level, text=text, exit_code=code))

    def _fail(self, check: str, error: BatchbenchError) -> None:
        self._add(check, str(error), "error", error.exit_code)

    @property
    def _failed(self) -> bool:
        return any(one.level == "error" for one in self._found)

    async def findings(self, pay: bool) -> list[Finding]:
        """Every finding; a check that needs the result of a failed one is left out."""
        contact = self._contact()
        if contact is None:
            return self._found
        if contact.provider.name == "mlm":
            self._add("address", "the model runs on this machine")
            return self._found
        try:
            async with make_client(contact, self._voice).running() as client:
                with anyio.fail_after(PATIENCE):
                    await self._free_calls(contact, client)
            if pay and not self._failed:
                folder = self._store.cache / "check"  # a single call writes nothing there
                async with connected(contact, self._store, folder, self._voice) as calls:
                    await self._pay(contact, calls)
        except TimeoutError:
            text = f"no usable answer from {contact.base_url} within {PATIENCE:.0f} s: check it"
            self._add("address", text, "error", 1)
        except BatchbenchError as error:
            self._fail("address", error)
        if not self._failed:
            self._estimates()
        return self._found

    def _contact(self) -> Contact | None:
        """The model's name, price and key."""
        contact = None
        try:
            target = self._target()
            self._add("name", f"{target.provider} {target.model}" + (" on the emulator" if target.emulated else ""))
        except BatchbenchError as error:
            self._fail("name", error)
            return None
        try:
            self._price(target)
        except UsageError as error:
            self._fail("price", error)
        try:
            contact = find_contact(self._options, self._store, target)
            own = contact.key.reveal() and not target.emulated
            self._add("key", f"{contact.provider.key_variable} is set" if own else "none is needed")
        except BatchbenchError as error:
            self._fail("key" if isinstance(error, KeyRefusedError) else "name", error)
        return contact

    def _probes(self) -> list[tuple[Probe[Params], Params]]:
        return chosen(self._selection, provider_of(self._name)) if self._selection.probes else []

    def _target(self) -> Target:
        targets = [make_target(self._name, self._options, *pair) for pair in self._probes()]
        return targets[0] if targets else make_target(self._name, self._options)

    def _price(self, target: Target) -> None:
        rates = price(self._options, self._store, target)
        amounts = f"${rates.input / MILLION:,.3f} in, ${rates.output / MILLION:,.3f} out per million tokens"
        amounts = amounts if rates.priced else "not priced: it counts as free; a budget needs --price IN,OUT"
        age, level = "", "ok"
        table = prices.snapshot(self._store.prices)
        if table.date in rates.source:
            days = (date.today() - date.fromisoformat(table.date)).days
            age = f", {days} days old" + ("; `batchbench prices refresh` reads newer ones" if days > OLD_PRICES else "")
            level = "warning" if days > OLD_PRICES else "ok"
        self._add("price", f"{amounts} ({rates.source}{age})", "warning" if level == "warning" else "ok")

    async def _free_calls(self, contact: Contact, client: Client) -> None:
        """Whether the address, the key and the model work, and how many batches are open."""
        if contact.provider.describe is not None:
            try:
                self._describe(await contact.provider.describe(client, contact.target))
            except ProviderError as error:
                unknown = error.status == 404 and contact.provider.name != "chat"  # these may have no list of models
                text = f"the provider does not know {contact.target.model}: check its name" if unknown else str(error)
                self._add("model", text, "error" if unknown else "warning", 1)
            except msgspec.DecodeError as error:
                self._add("model", f"the reply cannot be read ({error})", "warning")
        if contact.provider.name != "chat":
            await self._batches(contact, client)
        if (there := client.provider_time()) is not None:
            skew = there - time.time()
            level: Level = "ok" if abs(skew) <= MAX_SKEW else "warning"
            self._add("clock", f"this machine differs by {abs(skew):.0f} s from the server", level)
        limits = contact.limits
        queue = f", {limits.queued_requests:,} in its queue" if limits.queued_requests else ""
        self._add("limits", f"{limits.requests:,} requests in a batch, {limits.open_batches} batches at once{queue}")

    async def _batches(self, contact: Contact, client: Client) -> None:
        try:
            listed = await contact.provider.listing(client, (client.provider_time() or time.time()) - RECENT)
        except (ProviderError, msgspec.DecodeError) as error:
            self._add("batches", f"the list of batches cannot be read ({error})", "error", 1)
            return
        running = [batch for batch in listed if batch.state == "running"]
        requests = sum(batch.total or 0 for batch in running)
        self._add("batches", f"{len(running)} running with {requests:,} requests, {len(listed)} in 30 days")

    def _describe(self, info: ModelInfo) -> None:
        if info.listed is not None and info.id not in info.listed:
            names = ", ".join(info.listed[:5]) or "none"
            self._add("model", f"the server does not list {info.id}; it lists {names}", "warning")
        else:
            self._add("model", f"{info.id} exists")
        if info.retires is not None and (day := _date(info.retires)):
            left = (day - date.today()).days
            text = (
                f"it retires on {info.retires[:10]}, in {left} days"
                if left >= 0
                else f"it retired on {info.retires[:10]}"
            )
            self._add("retirement", text, "ok" if left > OLD_PRICES else "warning" if left >= 0 else "error", left < 0)
        if info.batch is False:
            self._add("batch API", "the model cannot be asked in batches", "error", 1)
        if info.thinking or info.efforts:
            words = ", ".join([*(info.thinking or []), *(f"effort {effort}" for effort in info.efforts or [])])
            self._add("thinking", words)

    async def _pay(self, contact: Contact, calls: Calls) -> None:
        """Ask one question, which costs money."""
        rates = price(self._options, self._store, contact.target)
        rates = rates.doubled() if contact.provider.half_price else rates
        try:
            answer = await contact.provider.ask(calls, contact.target, QUESTION)
        except Refused as refused:
            self._fail("trial", failure(refused))
        except (Unsent, LostReply, msgspec.DecodeError) as error:
            self._add("trial", f"no clear answer ({error})", "error", 1)
        else:
            cost = dollars(rates.cost(answer.input_tokens, answer.output_tokens))
            used = f"{answer.output_tokens:,} tokens out, {answer.reasoning_tokens:,} of them reasoning, {cost}"
            used = used if answer.usage else "the server reports no tokens, so every answer is booked at its maximum"
            text = " ".join((answer.text or "").split())[:60]
            good = answer.outcome == "answered"
            self._add("trial", f"{answer.outcome}: {text!r} ({used})", "ok" if good else "error", 0 if good else 5)

    def _estimates(self) -> None:
        for probe, params in self._probes():
            item = compile_probe(probe, params, self._store, self._voice)
            target = make_target(self._name, self._options, probe, params)
            found = estimate_run(plan_run(item, target, self._options, self._store), self._store)
            text = f"{found.requests:,} requests, about ${found.batch_usd:,.2f}, at most ${found.worst_usd:,.2f}"
            text = text if found.priced else f"{found.requests:,} requests, not priced"
            self._add(probe.name, f"{text}; answers of up to {target.max_tokens:,} tokens")


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        return None


def exit_code(found: Sequence[Finding]) -> int:
    """The exit code of the first error; 0 without errors."""
    return next((one.exit_code or 1 for one in found if one.level == "error"), 0)
