"""Model names and base URLs: how they are parsed, and which are refused before a key is sent."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbench.errors import UsageError
from batchbench.providers.target import Target, check_encrypted, checked_proxy, checked_url, parse


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("openai:gpt-4.1-mini", ("openai", "gpt-4.1-mini", None, False)),
        ("anthropic:claude-haiku-4-5", ("anthropic", "claude-haiku-4-5", None, False)),
        ("sim:random", ("openai", "random", None, True)),
        ("sim:planted/0.12", ("openai", "planted/0.12", None, True)),
        ("sim:anthropic/planted/0.12", ("anthropic", "planted/0.12", None, True)),
        ("chat:org/model@http://127.0.0.1:8000/v1", ("chat", "org/model", "http://127.0.0.1:8000/v1", False)),
    ],
)
def test_a_model_name_is_parsed(name: str, meaning: tuple[str, str, str | None, bool]) -> None:
    assert parse(name) == meaning


@pytest.mark.parametrize("name", ["", "gpt-4", "openai:", "opnai:gpt-4", "chat:model", "chat:@http://127.0.0.1/v1"])
def test_an_invalid_model_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        parse(name)


@pytest.mark.parametrize(
    "url", ["https://api.example.org/v1", "http://127.0.0.1:1/v1", "http://[::1]:1", "http://localhost"]
)
def test_https_and_loopback_addresses_are_accepted(url: str) -> None:
    assert checked_url(url + "/") == url


@pytest.mark.parametrize(
    "url",
    [
        "http://api.openai.com/v1",
        "http://10.0.0.1/v1",
        "https://api.openai.com@evil.example/",
        "https://user:pass@api.openai.com/",
        "ftp://api.openai.com/",
        "file:///etc/passwd",
        "https://",
        "https://api.openai.com/v1?key=1",
        "https://api.openai.com/#x",
        "https://api.openai.com:99999/",
        "https://api。openai。com/",
        "http://127.0.0.1.evil.example/",
        "//api.openai.com",
        "javascript:alert(1)",
    ],
)
def test_an_unsafe_or_misleading_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="base URL"):
        check_encrypted(checked_url(url), None, "OPENAI_API_KEY")


PROXIES = ["http://proxy:3128", "https://user:pass%40word@proxy.example", "http://10.0.0.1:8080/"]


@pytest.mark.parametrize("url", PROXIES)
def test_a_proxy_may_have_a_password(url: str) -> None:
    assert checked_proxy(url) == url


@pytest.mark.parametrize(
    "url", ["proxy:3128", "socks5://u:secret@h", "http://u:secret@", "http://u:secret@h:x", "http://u:secret@h/p"]
)
def test_the_message_about_a_wrong_proxy_does_not_show_its_password(url: str) -> None:
    with pytest.raises(UsageError, match="http://HOST:PORT") as error:
        checked_proxy(url)
    assert "secret" not in str(error.value)


@given(st.text(min_size=1, max_size=300), st.text(max_size=50))
def test_a_run_folder_has_a_safe_name_for_any_model_name(model: str, system: str) -> None:
    target = Target(provider="openai", model=model, max_tokens=1, system=system)
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,80}", target.slug)


def test_every_parameter_that_can_change_an_answer_makes_another_run() -> None:
    default = Target(provider="openai", model="m", max_tokens=300)
    others: list[dict[str, Any]] = [
        {"provider": "anthropic"},
        {"model": "n"},
        {"base_url": "https://x"},
        {"emulated": True},
        {"system": ""},
        {"max_tokens": 301},
        {"temperature": 1.0},
        {"top_p": 1.0},
        {"top_logprobs": 5},
        {"effort": "low"},
        {"thinking": "on"},
        {"extra": '{"seed":1}'},
    ]
    slugs = {msgspec.structs.replace(default, **change).slug for change in others}
    assert len(slugs | {default.slug}) == len(others) + 1


def test_an_emulated_run_is_the_same_on_every_port() -> None:
    target = Target(provider="openai", model="m", max_tokens=1, emulated=True, base_url="http://127.0.0.1:1")
    assert target.slug == msgspec.structs.replace(target, base_url="http://127.0.0.1:2").slug
