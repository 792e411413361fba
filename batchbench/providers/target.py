"""Pure: the model to ask, and every parameter besides the prompt that can change an answer."""

import hashlib
import posixpath
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from batchbench.errors import UsageError, unknown
from batchbench.probes.kit.probe import Params, Probe
from batchbench.providers import families

PROVIDERS = ("openai", "anthropic", "chat", "mlm", "sim")
LATER_FIELDS = ("effort", "thinking", "extra")
# Fields of a request that other options set, and these options.
SET_BY_OPTIONS = {
    "model": "--model",
    "messages": "",
    "system": "--system",
    "max_tokens": "--max-tokens",
    "max_completion_tokens": "--max-tokens",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "logprobs": "--set form=logprob",
    "top_logprobs": "--set form=logprob",
    "reasoning_effort": "--effort",
    "output_config": "--effort",
    "stream": "",
    "n": "--repetitions",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OWN_ADDRESSES = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
DEFAULT_PORTS = {"http": 80, "https": 443}
_ENCODED = re.compile(r"%([0-9A-Fa-f]{2})")


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
    effort: str | None = None  # how much the model thinks; None: the least that its family allows
    thinking: str | None = None  # None: off if its family allows it
    extra: str = ""  # a JSON object with sorted keys: more fields of the request's body
    # A JSON object: the fields that switch thinking on or off. They are kept, so that a run never changes them.
    thinking_fields: str = ""

    @property
    def name(self) -> str:
        """The model's name on the command line."""
        if not self.emulated:
            return f"{self.provider}:{self.model}" + (f"@{self.base_url}" if self.provider == "chat" else "")
        return f"sim:{self.model}" if self.provider == "openai" else f"sim:{self.provider}/{self.model}"

    def resolved_thinking(self) -> families.Thinking:
        """Whether and how much the model thinks; raises UsageError if its family does not accept the options."""
        return families.resolve(self.provider, self.model, self.effort, self.thinking)

    @property
    def other_bytes(self) -> int:
        """The bytes of a request, besides its prompt, that can become input tokens."""
        return len((self.system or "").encode()) + len(self.extra.encode())

    def canonical(self) -> "Target":
        """The same target with one spelling of its address; None is the provider's own address."""
        url = canonical_url(self.base_url) if self.base_url else None
        return msgspec.structs.replace(self, base_url=None if url == OWN_ADDRESSES.get(self.provider) else url)

    @property
    def slug(self) -> str:
        """The name of its run folder: readable, and unique to this target."""
        # The emulator's port is not part of the identity of an emulated run.
        identity = msgspec.structs.replace(self, base_url=None) if self.emulated else self
        fields = msgspec.structs.asdict(identity)
        # A target without these fields has the same slug as in versions that did not have them.
        for name in (*LATER_FIELDS, "thinking_fields"):
            if not fields[name]:
                del fields[name]
        digest = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:8]
        readable = "-".join(["sim"] * self.emulated + [self.provider, self.model])
        return f"{re.sub(r'[^a-z0-9]+', '-', readable.lower())[:48].strip('-')}-{digest}"


def with_extra(body: dict[str, object], target: Target, *own: str) -> dict[str, object]:
    """A request's body with the fields for thinking and those of --extra.

    Raises UsageError for a field that batchbench sets itself; `own` are such fields in addition to
    those in `body`.
    """
    body = body | _decoded(target.thinking_fields)
    extra = _decoded(target.extra)
    for key, value in extra.items():
        if key == "stream" and value is False:  # some servers stream unless they are told not to
            continue
        if key in SET_BY_OPTIONS or key in body or key in own:
            option = SET_BY_OPTIONS.get(key, "--thinking")
            advice = f"use {option}" if option else "leave it out"
            raise UsageError(f"--extra {key}: batchbench sets this field itself: {advice}")
    return body | extra


def _decoded(fields: str) -> dict[str, object]:
    return msgspec.json.decode(fields, type=dict[str, object]) if fields else {}


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


def canonical_name(name: str) -> str:
    """The name of a model with one spelling of its address, if it has one."""
    model, at, url = name.rpartition("@")
    return f"{model}@{canonical_url(url)}" if at and name.startswith("chat:") else name


def canonical_url(url: str) -> str:
    """One spelling for all spellings of an address, to compare it; calls go to the address as the user wrote it."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return url  # of a damaged run.json
    host = LOOPBACK[0] if host in LOOPBACK else f"[{host}]" if ":" in host else host
    address = host if port in (None, DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{port}"
    path = _ENCODED.sub(_plain, parts.path).strip("/")
    path = posixpath.normpath(f"/{path}").strip("/")
    return f"{parts.scheme}://{address}/{path}".rstrip("/")


def _plain(encoded: re.Match[str]) -> str:
    """A percent-encoded character as itself, if that makes no difference in a path."""
    character = chr(int(encoded[1], 16))
    unreserved = character.isascii() and (character.isalnum() or character in "-._~")
    return character if unreserved else encoded[0].upper()


def is_loopback(url: str) -> bool:
    """Whether an address is on this machine."""
    return urlsplit(url).hostname in LOOPBACK


def checked_url(url: str) -> str:
    """A base URL, without anything that could hide where it leads; see also `check_encrypted`."""
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
    return url.rstrip("/")


def check_encrypted(url: str, proxy: str | None, variable: str) -> None:
    """Refuse to send the key in `variable` to another machine over http, directly or through a proxy."""
    if urlsplit(url).scheme == "http" and not (is_loopback(url) and is_loopback(proxy or url)):
        raise UsageError(
            f"base URL {url!r}: http would show the key in {variable} to the network: use https, or an ssh tunnel (ssh "
            f"-L PORT:HOST:PORT) and http://127.0.0.1:PORT, or unset {variable}, or pass --allow-http to send it anyway"
        )


def checked_proxy(url: str) -> str:
    """The URL of a proxy, which may have a user name and a password; messages show neither."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        valid = False
    if (
        not valid
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
        or not url.isascii()
        or not url.isprintable()
    ):
        raise UsageError("the proxy is not of the form http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")
    return url


def changed_params(probe: Probe[Params], params: Mapping[str, object]) -> dict[str, object]:
    """Parameters that are not the probe's defaults."""
    defaults = probe.params()
    return {name: value for name, value in params.items() if value != getattr(defaults, name, None)}


def changed_options(probe: Probe[Params], target: Target | None) -> dict[str, object]:
    """Options of a target that are not the defaults; none for answers from a file, which have no target."""
    if target is None:
        return {}
    given = {name: getattr(target, name) for name in ("max_tokens", "temperature", "top_p", "system", *LATER_FIELDS)}
    # With log-probabilities, max_tokens is always 1, as the parameter `form` already shows.
    if target.top_logprobs is not None or target.max_tokens == probe.max_tokens + _headroom(target):
        del given["max_tokens"]
    return {name: value for name, value in given.items() if value not in (None, "")}


def _headroom(target: Target) -> int:
    """Tokens for thinking in the default limit; 0 for options of an older run that are not accepted any more."""
    try:
        return target.resolved_thinking().headroom
    except UsageError:
        return 0
