"""What commands that ask models share: whom to ask, at what price, and the way there."""

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import polars as pl

from batchbench import probes, providers
from batchbench.app.compile import Compiled, compiled
from batchbench.cli import output
from batchbench.compile.manifest import Manifest, checked_shards, read_manifest
from batchbench.core import money
from batchbench.core.keys import Secret
from batchbench.core.money import Price
from batchbench.core.store import Store
from batchbench.errors import KeyRefusedError, UsageError, unknown
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers import prices
from batchbench.providers import target as targets
from batchbench.providers.interface import Calls, Limits, Provider
from batchbench.providers.target import Target
from batchbench.transport.client import Client
from batchbench.transport.rate_limit import RateLimit
from batchbench.transport.single_calls import CallSpool

LOCAL = ("chat", "mlm")  # whose batches this very process carries out, so that it cannot leave them to anybody
ONE_TOKEN = {"max_tokens": 1, "top_logprobs": 20}  # the most alternatives that providers give
EMULATED_LIMITS = {"open_batches": 8, "settle": 2.0, "poll": (0.05, 1.0)}  # it lists what it accepts at once


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """A target and the way to it."""

    target: Target
    provider: Provider
    limits: Limits
    price: Price
    base_url: str
    key: Secret


def planned(args: argparse.Namespace, store: Store) -> list[tuple[Compiled, Target]]:
    """Each probe with each model, once, whatever it is called, and in the form that fits the model's provider."""
    kinds = {name: targets.parse(name)[0] for name in args.models}
    made = {kind: compiled(args, store, kind) for kind in dict.fromkeys(kinds.values())}
    probes = range(len(next(iter(made.values()))))
    pairs = [(made[kinds[name]][number], name) for number in probes for name in args.models]
    aimed = [(item, target(args, name, item.probe, item.params)) for item, name in pairs]
    return list({(item.folder, target.slug): (item, target) for item, target in aimed}.values())


def target(args: argparse.Namespace, name: str, probe: Probe[Params], params: Params | None = None) -> Target:
    """The target that a model's name and the options mean for a probe, and for the form in which it is asked."""
    provider, model, url, emulated = targets.parse(name)
    variable = providers.load(provider).url_variable
    if emulated and args.base_url:
        raise UsageError(f"{name} is on this machine: --base-url goes with openai: and anthropic: models")
    base_url = url or args.base_url or (None if emulated or not variable else os.environ.get(variable) or None)
    made = Target(
        provider=provider,
        model=model,
        base_url=targets.checked_url(base_url) if base_url else None,
        emulated=emulated,
        system=args.system,
        max_tokens=args.max_tokens or probe.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
    )
    form = getattr(params, "form", None)
    if form == "logprob":
        made = msgspec.structs.replace(made, **ONE_TOKEN)
    providers.load(provider).check(made)
    if form and probe.forms and form not in probe.forms(provider):
        fitting = " or ".join(f"form={form}" for form in probe.forms(provider))
        raise UsageError(f"{probe.name} cannot be asked of {name} with form={form}: use --set {fitting}")
    return made


def vouched(args: argparse.Namespace, target: Target, folder: Path) -> Target:
    """A target that a run's folder tells of, at the provider's own address or one that the user names as well.

    Folders are handed around, and whoever made one must not choose where a key is sent.
    """
    provider = providers.load(target.provider)
    said = args.base_url or os.environ.get(provider.url_variable) or provider.base_url
    where = target.base_url or provider.base_url
    if target.emulated or target.provider in LOCAL or where in (provider.base_url, targets.checked_url(said)):
        return target
    raise UsageError(f"{folder} is a run at {where}: if your key may go there, say so with --base-url {where}")


def price(args: argparse.Namespace, store: Store, target: Target) -> Price:
    """What the target charges; a price nobody knows is never taken for nothing."""
    if args.price is not None:
        return money.parse_price(args.price)
    if target.emulated:
        return prices.EMULATOR
    if target.provider == "mlm":
        return money.Price(input=0, output=0, source="a model on this machine")
    if target.provider == "chat" and targets.is_loopback(target.base_url or ""):
        return money.Price(input=0, output=0, source="a server on this machine")
    return prices.batch(prices.snapshot(store.prices), target.provider, target.model)


def contact(args: argparse.Namespace, store: Store, target: Target) -> Contact:
    """The way to a target: address and key; an emulated one is started if it is not running."""
    provider = providers.load(target.provider)
    limits, rates = provider.limits, price(args, store, target)
    if target.emulated:
        from batchbench import emulator
        from batchbench.emulator import personas
        from batchbench.emulator.personas import interface as persona

        if persona.persona(target.model, store.home) is None:
            raise unknown("persona", target.model, personas.ABOUT)
        running = emulator.start(store.cache / "emulator", arguments=["--home", str(store.home.absolute())])
        url = running.openai if target.provider == "openai" else running.anthropic
        limits = _limits(args, msgspec.structs.replace(limits, **EMULATED_LIMITS))
        return Contact(
            target=target,
            provider=provider,
            limits=limits,
            price=rates,
            base_url=url,
            key=Secret(running.token),
        )
    if target.provider == "mlm":
        from batchbench.transport import mlm

        mlm.check_installed(target.model)
        url, limits = provider.base_url, _limits(args, limits)
        return Contact(target=target, provider=provider, limits=limits, price=rates, base_url=url, key=Secret(""))
    key = os.environ.get(provider.key_variable, "").strip()
    if not key and not (target.provider == "chat" and targets.is_loopback(target.base_url or "")):
        raise KeyRefusedError(f"{target.name} needs a key: set {provider.key_variable} in the environment")
    if not key.isascii() or any(letter.isspace() for letter in key):
        raise UsageError(f"{provider.key_variable} does not look like a key: it holds spaces or foreign letters")
    url = target.base_url or provider.base_url
    if targets.is_loopback(url) and target.provider != "chat":
        limits = msgspec.structs.replace(limits, poll=EMULATED_LIMITS["poll"])  # nobody else's rate limit is near
    limits = _limits(args, limits)
    return Contact(target=target, provider=provider, limits=limits, price=rates, base_url=url, key=Secret(key))


def _limits(args: argparse.Namespace, limits: Limits) -> Limits:
    if args.settle is not None:
        limits = msgspec.structs.replace(limits, settle=args.settle)
    if args.batch_size is not None:
        limits = msgspec.structs.replace(limits, requests=min(args.batch_size, limits.requests))
    return limits


@asynccontextmanager
async def connected(
    contact: Contact, args: argparse.Namespace, store: Store, folder: Path, pace: RateLimit | None = None
) -> AsyncIterator[Calls]:
    """Calls to a target; `folder` is the run's, where batches are played that nobody else carries out.

    `pace` is what is known of how fast a server without batches may be called.
    """
    api = Client(contact.provider, contact.base_url, contact.key, note=output.note(args))
    if contact.provider.name == "chat":
        async with CallSpool(folder / "spool", store, api, output.note(args), pace).running() as spool:
            yield spool
    elif contact.provider.name == "mlm":
        from batchbench.transport.mlm.batches import ModelSpool

        candidates = _candidates(store, folder)
        async with ModelSpool(folder / "spool", store, contact.target.model, candidates).running() as spool:
            yield spool
    else:
        async with api.running():
            yield api


def _candidates(store: Store, folder: Path) -> list[tuple[str, str]] | None:
    """The words that a masked model is asked about, by row of the manifest that a run's folder belongs to."""
    manifest_folder = store.manifests / folder.parent.name
    manifest = read_manifest(manifest_folder)
    words = probes.load(manifest.probe).candidates if manifest else None
    if manifest is None or words is None:
        return None
    files = checked_shards(manifest_folder, manifest)
    return pl.scan_parquet(files, glob=False).sort("id").select(one=words[0], two=words[1]).collect().rows()


def sample_size(args: argparse.Namespace, probe: Probe[Params], manifest: Manifest) -> int:
    """How many items are asked for."""
    if args.sample_k is None:
        return min(probe.sample_k or manifest.items, manifest.items)
    if args.sample_k == "all":
        return manifest.items
    if not args.sample_k.isdecimal() or len(args.sample_k) > 18 or int(args.sample_k) < 1:
        raise UsageError(f"--sample-k {args.sample_k!r} is neither a number of items nor `all`")
    return min(int(args.sample_k), manifest.items)
