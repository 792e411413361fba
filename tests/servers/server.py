"""A small server of the kind that users have: OpenAI's chat completions and batches, with one deviation at a time.

It shares no code with the emulator and follows no documentation word for word. Each mode is a way in which a real
server or gateway differs from OpenAI's API.
"""

import asyncio
import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Json = dict[str, Any]
ANSWER = "You have been selected."


def completion(text: str | None = ANSWER, finish: str = "stop", **fields: Any) -> Json:
    """An answer as every server gives it."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
        **fields,
    }


def answer(status: int = 200, **fields: Any) -> web.Response:
    return web.json_response(completion(**fields), status=status)


def refuse(status: int, body: Any, **headers: str) -> web.Response:
    return web.json_response(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})


class Call:
    """One call that arrived."""

    def __init__(self, request: web.Request, content: bytes, number: int) -> None:
        self.method, self.path, self.url = request.method, request.path, str(request.url)
        self.headers = dict(request.headers)
        self.number = number  # of the chat calls, from 1
        self.content = content
        self.body: Json = json.loads(content) if content[:1] == b"{" else {}
        self.prompt: str = self.body.get("messages", [{"content": ""}])[-1]["content"]


class Server:
    """A server on loopback. `chat` answers a chat call; `encode` changes every reply."""

    def __init__(self, chat: Callable[[Call], web.StreamResponse | None], **options: Any) -> None:
        self.chat = chat
        self.created = options.get("created", 200)  # the status of a success
        self.encoding: str = options.get("encoding", "")
        self.redirect: str = options.get("redirect", "")  # where downloads are redirected to
        self.pause: float = options.get("pause", 0.0)  # seconds before each answer
        self.failed: Callable[[list[Json]], str | None] = options.get("failed", lambda _: None)
        self.calls: list[Call] = []
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Json] = {}
        self.url = ""

    def chat_calls(self) -> list[Call]:
        return [call for call in self.calls if call.path.endswith("/chat/completions")]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        call = Call(request, content, len(self.chat_calls()) + 1)
        self.calls.append(call)
        if call.path == "/v1/chat/completions":
            await asyncio.sleep(self.pause)
            reply = self.chat(call)
            if reply is None:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
        else:
            reply = self.batch_call(call, request)
        return self.encoded(reply)

    def encoded(self, reply: web.StreamResponse) -> web.StreamResponse:
        if not self.encoding or not isinstance(reply, web.Response) or not isinstance(reply.body, bytes):
            return reply
        packed = gzip.compress(reply.body) if self.encoding == "gzip" else zlib.compress(reply.body)
        headers = {"Content-Encoding": self.encoding, "Content-Type": "application/json"}
        return web.Response(status=reply.status, body=packed, headers=headers)

    # -- batches -------------------------------------------------------------------------------------------

    def batch_call(self, call: Call, request: web.Request) -> web.Response:
        match call.method, call.path.removeprefix("/v1").strip("/").split("/"):
            case "POST", ["files"]:
                start = call.content.index(b"octet-stream\r\n\r\n") + 16
                lines = call.content[start : call.content.rindex(b"\r\n--")]
                name = f"file-{len(self.files)}"
                self.files[name] = lines
                return web.json_response({"id": name, "bytes": len(lines)}, status=self.created)
            case "POST", ["batches"]:
                return web.json_response(self.create(call.body), status=self.created)
            case "GET", ["batches"]:
                return web.json_response({"data": list(self.batches.values())[::-1], "has_more": False})
            case "GET", ["batches", name] if name in self.batches:
                return web.json_response(self.batches[name])
            case "GET", ["files", name, "content"] if name in self.files:
                if self.redirect:
                    return web.Response(status=302, headers={"Location": f"{self.redirect}/stored/{name}"})
                return web.Response(body=self.files[name])
            case "GET", ["stored", name] if name in self.files:
                return web.Response(body=self.files[name])
        return refuse(404, {"error": {"message": f"no {request.path}"}})

    def create(self, order: Json) -> Json:
        requests = [json.loads(line) for line in self.files[order["input_file_id"]].splitlines()]
        name = f"batch-{len(self.batches)}"
        self.batches[name] = {
            "id": name,
            "status": "completed",
            "created_at": int(time.time()),
            "input_file_id": order["input_file_id"],
            "metadata": order["metadata"],
        }
        if problem := self.failed(requests):
            errors = {"data": [{"code": "token_limit_exceeded", "message": problem}]}
            self.batches[name] |= {"status": "failed", "errors": errors}
            return self.batches[name]
        results = [
            {"custom_id": one["custom_id"], "response": {"status_code": 200, "body": completion()}, "error": None}
            for one in requests
        ]
        self.files[f"out-{name}"] = b"".join(json.dumps(line).encode() + b"\n" for line in results)
        self.batches[name]["output_file_id"] = f"out-{name}"
        return self.batches[name]


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Run a server in a thread, on a free port."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
