"""How a target is reached: its price, its key, its address, and the connection."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import polars as pl

from batchbench.app.requests import Options, Voice
from batchbench.compile.manifest import checked_shards, read_manifest
from batchbench.core import money
from batchbench.core.keys import Secret
from batchbench.core.money import FREE_SERVER, Price
from batchbench.core.store import Store
from batchbench.errors import KeyRefusedError, UsageError, unknown
from batchbench.probes import load_probe
from batchbench.providers import load_provider, prices
from batchbench.providers.interface import Calls, Limits, Provider
from batchbench.providers.target import Target, canonical_url, check_encrypted, checked_url, is_loopback
from batchbench.transport.client import CALL_TIMEOUT, Client, Network
from batchbench.transport.rate_limit import RateLimit
from batchbench.transport.single_calls import CallSpool

LOCAL = ("chat", "mlm")  # this process executes their batches; --detach has no effect on them
LOCAL_POLL = (0.05, 1.0)  # seconds: a server on this machine has no rate limit to respect
EMULATED_LIMITS = {"open_batches": 8, "settle": 2.0, "poll": LOCAL_POLL}  # its listing shows a batch immediately


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """A target, and what is needed to call it."""

    target: Target
    provider: Provider
    limits: Limits
    base_url: str
    key: Secret
    local: bool  # on this machine
    network: Network = Network()


def price(options: Options, store: Store, target: Target) -> Price:
    """What the target charges; raises UsageError if no price is known."""
    if options.price is not None:
        return money.parse_price(options.price)
    if target.emulated:
        return prices.EMULATOR
    if target.provider == "mlm":
        return Price(input=0, output=0, source="a model on this machine")
    table = prices.snapshot(store.prices)
    if target.provider == "chat" and is_loopback(target.base_url or ""):
        # A gateway on this machine may forward the model of a provider that charges.
        return prices.named_price(table, target.model) or Price(input=0, output=0, source=FREE_SERVER)
    return prices.batch_price(table, target.provider, target.model)


def find_contact(options: Options, store: Store, target: Target) -> Contact:
    """Find the address and the key of a target; start the emulator if the target is emulated and it does not run."""
    provider = load_provider(target.provider)
    limits, url = provider.limits, target.base_url or provider.base_url
    local = target.emulated or is_loopback(url)
    if target.emulated:
        from batchbench.emulator import start

        check_persona(target.model, target.provider)
        running = start(store.cache / "emulator", arguments=["--home", str(store.home.absolute())])
        url = running.openai if target.provider == "openai" else running.anthropic
        limits, key = msgspec.structs.replace(limits, **EMULATED_LIMITS), Secret(running.token)
    elif target.provider == "mlm":
        from batchbench.transport import mlm

        mlm.check_installed(target.model)
        key = Secret("")
    else:
        key = _key(options, target, provider)
        if local and target.provider != "chat":
            limits = msgspec.structs.replace(limits, poll=LOCAL_POLL)
    if options.settle is not None:
        limits = msgspec.structs.replace(limits, settle=options.settle)
    if options.batch_size is not None:
        limits = msgspec.structs.replace(limits, requests=min(options.batch_size, limits.requests))
    proxy = Secret(options.proxy) if options.proxy and not target.emulated else None
    network = Network(timeout=options.timeout or CALL_TIMEOUT, proxy=proxy)
    return Contact(target=target, provider=provider, limits=limits, base_url=url, key=key, local=local, network=network)


def _key(options: Options, target: Target, provider: Provider) -> Secret:
    key = os.environ.get(provider.key_variable, "").strip()
    if key and not options.allow_http:
        check_encrypted(target.base_url or provider.base_url, options.proxy, provider.key_variable)
    if not key and target.provider != "chat":
        raise KeyRefusedError(f"{target.name} needs a key: set {provider.key_variable} in the environment")
    if not key.isascii() or any(letter.isspace() for letter in key):
        raise UsageError(f"{provider.key_variable} does not look like a key: it contains spaces or non-ASCII letters")
    return Secret(key)


def check_needs(options: Options, store: Store, target: Target) -> None:
    """Check what a run needs before anything is compiled: the price, the key and the persona."""
    price(options, store, target)
    if target.emulated:
        check_persona(target.model, target.provider)
    elif target.provider != "mlm":
        _key(options, target, load_provider(target.provider))


def check_persona(model: str, dialect: str) -> None:
    """Raise UsageError if the emulator has no such model in that dialect."""
    from batchbench.emulator import PERSONAS, model_exists, persona_exists

    if model_exists(model, "anthropic" if dialect == "anthropic" else "openai"):
        return
    if persona_exists(model):
        other = "openai" if dialect == "anthropic" else "anthropic"
        raise UsageError(f"{model} is a model of the other dialect: write sim:{other}/{model}")
    raise unknown("persona", model, PERSONAS)


def vouched(base_url: str | None, target: Target, folder: Path) -> Target:
    """The target of a run's folder, if its address is the provider's own or one that the user names, too.

    Folders are copied between people. The author of a folder must not decide where the user's key is sent.
    """
    if target.emulated or target.provider in LOCAL:
        return target
    provider = load_provider(target.provider)
    named = base_url or os.environ.get(provider.url_variable) or provider.base_url
    address = target.base_url or provider.base_url
    allowed = {canonical_url(provider.base_url), canonical_url(checked_url(named))}
    if canonical_url(address) in allowed:
        return target
    raise UsageError(f"{folder} is a run at {address}: if your key may be sent there, pass --base-url {address}")


def make_client(contact: Contact, voice: Voice) -> Client:
    """The HTTP client of a target."""
    return Client(contact.provider, contact.base_url, contact.key, note=voice.note, network=contact.network)


@asynccontextmanager
async def connected(
    contact: Contact, store: Store, folder: Path, voice: Voice, rate_limit: RateLimit | None = None
) -> AsyncIterator[Calls]:
    """A connection to a target. Batches that this process executes are kept in `folder`, which is the run's.

    `rate_limit` is what other runs have learnt about the same chat server.
    """
    client = make_client(contact, voice)
    if contact.provider.name == "chat":
        async with CallSpool(folder / "spool", store, client, voice.note, rate_limit).running() as spool:
            yield spool
    elif contact.provider.name == "mlm":
        from batchbench.transport.mlm.batches import ModelSpool

        candidates = _candidates(store, folder)
        async with ModelSpool(folder / "spool", store, contact.target.model, candidates).running() as spool:
            yield spool
    else:
        async with client.running():
            yield client


def _candidates(store: Store, folder: Path) -> list[tuple[str, str]] | None:
    """The two words that a masked model compares in each row of a run's manifest; None if the probe has none."""
    manifest_folder = store.manifests / folder.parent.name
    manifest = read_manifest(manifest_folder)
    words = load_probe(manifest.probe).candidates if manifest else None
    if manifest is None or words is None:
        return None
    files = checked_shards(manifest_folder, manifest)
    return pl.scan_parquet(files, glob=False).sort("id").select(one=words[0], two=words[1]).collect().rows()
