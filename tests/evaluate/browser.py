"""A headless Chromium over its debugging protocol: what a page logs, what it asks for, how wide it is, how it looks."""

import asyncio
import base64
import itertools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--no-first-run", "--disable-default-apps", "--remote-debugging-port=0"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--disable-extensions"),
)


def chromium() -> str | None:
    """The program, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Visit:
    """What happened on a page.

    Attributes
    ----------
    log : list of str
        Messages of the console and of the browser, violations of the page's policy among them.
    requests : list of str
        Addresses asked for, but the page itself.
    answers : list
        Values of the scripts.
    """

    log: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    screenshot: bytes = b""


def visit(
    page: Path,
    *,
    width: int = 1440,
    height: int = 900,
    dark: bool = False,
    scripts: Sequence[str] = (),
    picture: bool = False,
    paper: bool = False,
) -> Visit:
    """Open a local page, run scripts in it, and say what happened."""
    program = chromium()
    if program is None:
        raise FileNotFoundError("chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # its last processes may still write
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.PIPE, text=True
        )
        try:
            address = ""
            for line in process.stderr or ():
                if found := re.search(r"listening on (ws://\S+)", line):
                    address = found[1]
                    break
            return asyncio.run(_visit(address, page.resolve().as_uri(), width, height, dark, scripts, picture, paper))
        finally:
            process.kill()
            process.wait()


async def _visit(
    address: str, url: str, width: int, height: int, dark: bool, scripts: Sequence[str], picture: bool, paper: bool
) -> Visit:
    result, loaded = Visit(), asyncio.Event()
    connection = await websocket_connect(address, max_message_size=1 << 28)
    waiting: dict[int, asyncio.Future[Any]] = {}
    numbers = itertools.count(1)

    async def call(method: str, session: str | None = None, **parameters: Any) -> Any:
        number = next(numbers)
        answer = waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await connection.write_message(json.dumps(message | ({"sessionId": session} if session else {})))
        return await asyncio.wait_for(answer, 60)

    listening = asyncio.ensure_future(_listen(connection, waiting, result, loaded, url))
    target = (await call("Target.createTarget", url="about:blank"))["targetId"]
    session = (await call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        await call(f"{domain}.enable", session)
    mobile = width < 600
    await call(
        "Emulation.setDeviceMetricsOverride", session, width=width, height=height, deviceScaleFactor=1, mobile=mobile
    )
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    await call("Emulation.setEmulatedMedia", session, media="print" if paper else "", features=features)
    await call("Page.navigate", session, url=url)
    await asyncio.wait_for(loaded.wait(), 60)
    ready = "document.readyState == 'complete' && location.protocol != 'about:'"
    async with asyncio.timeout(60):  # what was loaded may have been the empty page
        while not (await call("Runtime.evaluate", session, expression=ready))["result"].get("value"):
            await asyncio.sleep(0.05)
    for script in scripts:
        answer = await call("Runtime.evaluate", session, expression=script, returnByValue=True, awaitPromise=True)
        result.answers.append(answer["result"].get("value"))
    await asyncio.sleep(1)  # a late request would come now
    if picture:
        shot = await call("Page.captureScreenshot", session, format="png", captureBeyondViewport=True)
        result.screenshot = base64.b64decode(shot["data"])
    listening.cancel()
    connection.close()
    return result


async def _listen(
    connection: WebSocketClientConnection,
    waiting: dict[int, asyncio.Future[Any]],
    result: Visit,
    loaded: asyncio.Event,
    url: str,
) -> None:
    while (text := await connection.read_message()) is not None:
        message = json.loads(text)
        if "id" in message:
            future = waiting.pop(message["id"])
            if "error" in message:
                future.set_exception(RuntimeError(message["error"]["message"]))
            else:
                future.set_result(message["result"])
            continue
        body = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                loaded.set()
            case "Runtime.consoleAPICalled":
                result.log.append(" ".join(str(item.get("value")) for item in body["args"]))
            case "Runtime.exceptionThrown":
                result.log.append(body["exceptionDetails"]["text"])
            case "Log.entryAdded":
                result.log.append(f"{body['entry']['level']}: {body['entry']['text']}")
            case "Network.requestWillBeSent" if body["request"]["url"].split("#")[0] != url:
                result.requests.append(body["request"]["url"])
