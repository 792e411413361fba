"""Pure: what an error of the network proves, and how it is described."""

import os

import aiohttp
from aiohttp import client_exceptions

# For each exception of aiohttp: whether the request may have reached the provider. False proves that no byte of it
# left this machine. tests/test_client.py fails on a class that is missing here.
SENT: dict[type[BaseException], bool] = {
    aiohttp.ClientConnectorError: False,
    aiohttp.ClientConnectorDNSError: False,
    aiohttp.ClientConnectorSSLError: False,
    aiohttp.ClientConnectorCertificateError: False,
    aiohttp.ClientSSLError: False,
    aiohttp.ClientProxyConnectionError: False,
    aiohttp.ConnectionTimeoutError: False,
    client_exceptions.UnixClientConnectorError: False,
    client_exceptions.UploadAbortedError: True,
    aiohttp.InvalidURL: False,
    aiohttp.InvalidUrlClientError: False,
    aiohttp.NonHttpUrlClientError: False,
    aiohttp.NonHttpUrlRedirectClientError: True,
    aiohttp.InvalidUrlRedirectClientError: True,
    aiohttp.RedirectClientError: True,
    aiohttp.TooManyRedirects: True,
    aiohttp.ClientError: True,
    aiohttp.ClientConnectionError: True,
    aiohttp.ClientConnectionResetError: True,
    aiohttp.ClientOSError: True,
    aiohttp.ClientPayloadError: True,
    aiohttp.ClientResponseError: True,
    aiohttp.ClientHttpProxyError: False,  # the proxy refused to connect
    aiohttp.ContentTypeError: True,
    aiohttp.ServerConnectionError: True,
    aiohttp.ServerDisconnectedError: True,
    aiohttp.ServerFingerprintMismatch: False,
    aiohttp.ServerTimeoutError: True,
    aiohttp.SocketTimeoutError: True,
    aiohttp.WSServerHandshakeError: True,
    aiohttp.WSMessageTypeError: True,
    TimeoutError: True,
    ConnectionError: True,
    OSError: True,
}


def describe(error: BaseException) -> str:
    """An error of the network in words. Never its repr: that shows the request's headers, and the key is among them."""
    match error:
        case aiohttp.ClientProxyConnectionError():
            return f"cannot connect to the proxy {error.host}:{error.port} ({_reason(error)})"
        case aiohttp.ClientConnectorCertificateError():
            return str(error)
        case aiohttp.ClientConnectorSSLError():
            return f"no encrypted connection to {error.host}:{error.port} (SSL: {error.strerror or error.os_error})"
        case aiohttp.ClientConnectorError():
            return f"cannot connect to {error.host}:{error.port} ({_reason(error)})"
        case aiohttp.ClientHttpProxyError():
            return f"{error.status} {error.message}"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection without a reply"
        case ConnectionResetError() | aiohttp.ClientOSError():
            return f"the connection broke ({_reason(error)})"
        case aiohttp.ClientPayloadError():
            return f"the reply is incomplete or damaged ({error})"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _reason(error: OSError) -> str:
    """The system's words for an error; a name that cannot be resolved has a negative number and its own words."""
    if isinstance(error.errno, int) and error.errno > 0:
        return os.strerror(error.errno)
    return str(error.strerror or error)
