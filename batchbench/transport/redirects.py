"""Pure: which redirects of a download may be followed.

A download may be redirected to the provider's file storage. The key stays with the address that the user named: it is
sent on only to the same scheme, host and port. All other calls follow no redirect.
"""

from urllib.parse import urljoin, urlsplit

MAX_REDIRECTS = 5
STATUSES = (301, 302, 303, 307, 308)
PORTS = {"http": 80, "https": 443}


def next_address(current: str, location: str) -> str:
    """The address that a redirect leads to; raises ValueError if it must not be called."""
    address = urljoin(current, location)
    parts = urlsplit(address)
    if not location or parts.scheme not in PORTS or not parts.hostname or not location.isprintable():
        raise ValueError("it leads to no http or https address")
    if urlsplit(current).scheme == "https" and parts.scheme == "http":
        raise ValueError("it leads from https to http")
    if parts.username is not None or parts.password is not None:
        raise ValueError("its address has a user name")
    _origin(address)
    return address


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses have the same scheme, host and port."""
    return _origin(one) == _origin(other)


def _origin(address: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)
