"""A proxy between the client and the emulator: passes calls on, or answers as no correct server would."""

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from tests.dispatch.scene import Scene


class Call(NamedTuple):
    """One request, as it arrived."""

    connection: int  # its number, from 0
    turn: int  # the number of the call on its connection, from 0
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Meddle = Callable[[Call, socket.socket], bool]  # True: the handler has answered, and the connection is closed


class Proxy:
    """A loopback server in front of a scene's emulator while the context lasts."""

    def __init__(self, scene: Scene, meddle: Meddle = lambda *_: False, tls: ssl.SSLContext | None = None) -> None:
        self._upstream = scene.emulator.port
        self._meddle = meddle
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.calls: list[Call] = []
        self._open: list[tuple[threading.Thread, socket.socket]] = []
        scheme, port = "https" if tls else "http", self._listener.getsockname()[1]
        for name in ("openai_url", "anthropic_url"):
            _, _, path = getattr(scene.emulator, name).partition(f":{self._upstream}")
            setattr(scene.emulator, name, f"{scheme}://127.0.0.1:{port}{path}")

    def __enter__(self) -> "Proxy":
        self._door = threading.Thread(target=self._accept)
        self._door.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._door.join()
        self._listener.close()
        for thread, connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()
            connection.close()

    def asked(self, method: str, end: str) -> list[Call]:
        """The calls of a method to paths with this ending."""
        return [call for call in self.calls if call.method == method and call.path.partition("?")[0].endswith(end)]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, len(self._open)))
            self._open.append((thread, connection))
            thread.start()

    def _serve(self, raw: socket.socket, number: int) -> None:
        try:
            turn, shaken = 0, self._tls.wrap_socket(raw, server_side=True) if self._tls else raw
            with shaken as connection, connection.makefile("rb") as reader:
                while call := _read(reader, number, turn):
                    self.calls.append(call)
                    if self._meddle(call, connection):
                        return
                    connection.sendall(self.answer(call))
                    turn += 1
                if turn == 0:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        except OSError:
            return  # the client closed the connection, or refused the TLS handshake

    def answer(self, call: Call) -> bytes:
        """The emulator's reply to a call."""
        upstream = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=60)
        headers = {**call.headers, "host": f"127.0.0.1:{self._upstream}"}
        upstream.request(call.method, call.path, call.body or None, headers)
        response = upstream.getresponse()
        body = response.read()
        upstream.close()
        told = {name.lower(): value for name, value in response.getheaders()}
        told = {name: value for name, value in told.items() if name not in ("transfer-encoding", "connection")}
        head = [f"HTTP/1.1 {response.status} {response.reason}"]
        head += [f"{name}: {value}" for name, value in {**told, "content-length": str(len(body))}.items()]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def _read(reader: BinaryIO, number: int, turn: int) -> Call | None:
    """The next request of a connection; None at its end."""
    words = reader.readline().split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/"):
        return None
    method, path = words[0].decode(), words[1].decode()
    headers: dict[str, str] = {}
    while (line := reader.readline().strip()) and b":" in line:
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return Call(number, turn, method, path, headers, reader.read(int(headers.get("content-length", 0))))
