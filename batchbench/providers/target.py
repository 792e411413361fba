"""Pure: the model to ask, and every parameter besides the prompt that can change an answer."""

import hashlib
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from batchbench.errors import UsageError, unknown
from batchbench.probes.kit.probe import Params, Probe

PROVIDERS = ("openai", "anthropic", "chat", "mlm", "sim")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One model with its parameters; two runs with equal targets are the same run."""

    provider: str
    model: str
    base_url: str | None = None  # None: the provider's default
    emulated: bool = False
    system: str | None = None
    max_tokens: int
    temperature: float | None = None  # None: the provider's default
    top_p: float | None = None
    top_logprobs: int | None = None

    @property
    def name(self) -> str:
        """The model's name on the command line."""
        if not self.emulated:
            return f"{self.provider}:{self.model}" + (f"@{self.base_url}" if self.provider == "chat" else "")
        return f"sim:{self.model}" if self.provider == "openai" else f"sim:{self.provider}/{self.model}"

    @property
    def slug(self) -> str:
        """The name of its run folder: readable, and unique to this target."""
        # The emulator's port is not part of the identity of an emulated run.
        identity = msgspec.structs.replace(self, base_url=None) if self.emulated else self
        digest = hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:8]
        readable = "-".join(["sim"] * self.emulated + [self.provider, self.model])
        return f"{re.sub(r'[^a-z0-9]+', '-', readable.lower())[:48].strip('-')}-{digest}"


def parse(name: str) -> tuple[str, str, str | None, bool]:
    """Provider, model, base URL and whether it is emulated, from a name such as `openai:MODEL` or `sim:PERSONA`."""
    kind, colon, rest = name.partition(":")
    if not colon or not rest:
        raise UsageError(f"model {name!r} is not of the form PROVIDER:MODEL, such as openai:MODEL or sim:random")
    if kind not in PROVIDERS:
        raise unknown("provider", kind, PROVIDERS)
    if kind == "sim":
        dialect, slash, persona = rest.partition("/")
        if slash and dialect in ("openai", "anthropic"):
            return dialect, persona, None, True
        return "openai", rest, None, True
    if kind == "chat":
        model, at, url = rest.rpartition("@")
        if not at or not model:
            raise UsageError(f"model {name!r} has no address: write chat:MODEL@http://HOST:PORT/v1")
        return kind, model, checked_url(url), False
    return kind, rest, None, False


def is_loopback(url: str) -> bool:
    """Whether an address is on this machine."""
    return urlsplit(url).hostname in LOOPBACK


def checked_url(url: str) -> str:
    """A base URL that a key may be sent to: https, or http to this machine."""
    if not url.isprintable() or " " in url:
        raise UsageError(f"base URL {url!r} contains spaces or invisible characters: remove them")
    try:
        parts = urlsplit(url)
        host = parts.hostname
        parts.port  # noqa: B018 - raises if the port is invalid
    except ValueError as error:
        raise UsageError(f"base URL {url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"base URL {url!r} is not an http or https address")
    if parts.username or parts.password or parts.query or parts.fragment or not host.isascii():
        raise UsageError(f"base URL {url!r} may have only an ASCII host, a port and a path: remove the rest")
    if parts.scheme == "http" and host not in LOOPBACK:
        raise UsageError(f"base URL {url!r}: http is allowed only to this machine; use https")
    return url.rstrip("/")


def changed_params(probe: Probe[Params], params: Mapping[str, object]) -> dict[str, object]:
    """Parameters that are not the probe's defaults."""
    defaults = probe.params()
    return {name: value for name, value in params.items() if value != getattr(defaults, name, None)}


def changed_options(probe: Probe[Params], target: Target | None) -> dict[str, object]:
    """Options of a target that are not the defaults; none for answers from a file, which have no target."""
    if target is None:
        return {}
    given = {name: getattr(target, name) for name in ("max_tokens", "temperature", "top_p", "system")}
    # With log-probabilities, max_tokens is always 1, as the parameter `form` already shows.
    if target.top_logprobs is not None or target.max_tokens == probe.max_tokens:
        del given["max_tokens"]
    return {name: value for name, value in given.items() if value is not None}
