"""A headless Chromium, controlled by the DevTools protocol: screenshots, requests and errors of a page."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0"),
)
PATIENCE = 240.0  # seconds; only a browser that hangs needs so long
Json = dict[str, Any]


class Browser:
    """One tab, with all its requests and all its errors and warnings."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._loaded = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._numbers = itertools.count(1)
        self._profile = profile
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    async def __aenter__(self) -> "Browser":
        port = await self._port()
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as reply:
            tabs = await reply.json()
        url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        self._socket = await self._session.ws_connect(url, max_msg_size=0)
        self._reader = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip  # noqa: E501
        self._reader.cancel()
        await self._socket.close()
        await self._session.close()
        self._process.terminate()
        self._process.wait(20)

    async def _port(self) -> int:
        port_file = self._profile / "DevToolsActivePort"
        for _ in range(600):
            if port_file.exists() and (lines := port_file.read_text().splitlines()):
                return int(lines[0])
            await asyncio.sleep(0.05)
        raise TimeoutError("Chromium does not start")

    async def _read(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
                continue
            about = event.get("params", {})
            match event["method"]:
                case "Network.requestWillBeSent":
                    self.requests.append(about["request"]["url"])
                case "Runtime.exceptionThrown":
                    self.errors.append(str(about["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                    self.errors.append(str(about["args"]))
                case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                    self.errors.append(about["entry"]["text"])
                case "Page.loadEventFired":
                    self._loaded.set()

    async def call(self, method: str, **params: object) -> Json:
        """Call a method of the protocol."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(self._answers[number], PATIENCE)
        assert "error" not in answer, answer
        result: Json = answer["result"]
        return result

    async def open(
        self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = ""
    ) -> float:
        """Open a file; returns the seconds until it was loaded and drawn."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", media=media, features=scheme)
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._loaded.clear()
        started = time.monotonic()
        await self.call("Page.navigate", url=page.absolute().as_uri())
        await asyncio.wait_for(self._loaded.wait(), PATIENCE)
        await self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.monotonic() - started

    async def run(self, script: str) -> Any:
        """Evaluate an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def picture(self, target: Path, *, whole: bool = True, clip: Json | None = None) -> None:
        """Save a PNG of the page, or of a part of it."""
        extra = {"clip": clip} if clip else {}
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=whole, **extra)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(shot["data"]))

    async def paper(self, target: Path) -> None:
        """Save the printed page as PDF."""
        printed = await self.call("Page.printToPDF", printBackground=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(printed["data"]))


def keep(name: str) -> Path | None:
    """The path of a picture to keep, or None if BATCHBENCH_TEST_PICTURES is not set."""
    folder = os.environ.get("BATCHBENCH_TEST_PICTURES")
    return Path(folder) / name if folder else None
