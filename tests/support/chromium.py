"""Debian's Chromium, driven by its DevTools protocol: a page opened, clicked, typed into, and listened to."""

import base64
import itertools
import json
import shutil
import subprocess
from pathlib import Path

import websocket

from support.serving import wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",  # a camera, and somebody who allows it
]  # fmt: skip


class Browser:
    """A browser with one page open. It keeps what the page complained about, and every address that it asked for."""

    def __init__(self, folder: Path):
        words = [CHROMIUM, *QUIET, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = wait_for(lambda: _port(folder / "DevToolsActivePort"))
        self.socket = websocket.create_connection(f"ws://127.0.0.1:{port[0]}{port[1]}", suppress_origin=True)
        self.numbers = itertools.count(1)
        self.session, self.events = None, []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, address, width=1280, height=900, dark=False, reduced=False):
        self.send("Page.navigate", url="about:blank")  # a fragment alone would not load it anew
        self.until("location.href === 'about:blank'")
        self.events.clear()  # the page before may have asked for more than its server lived to answer
        self.resize(width, height)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced else "no-preference"},
        ]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width, height=900):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, script):
        """What an expression, or what it promises, comes to."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script):
        """What an expression comes to as soon as that is not false, null or empty."""
        return wait_for(lambda: self.run(script), script)

    def box(self, selector):
        """Left, top, width and height of an element on the screen, after scrolling to it."""
        return self.run(
            f"""(() => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{ block: "center" }});
              const box = element.getBoundingClientRect();
              return [box.left, box.top, box.width, box.height];
            }})()"""
        )

    def click(self, selector, x=0.5, y=0.5):
        self.drag(selector, [(x, y)])

    def drag(self, selector, places):
        """Press at the first of places, each a share of the element's width and height, move over them, let go."""
        left, top, width, height = self.box(selector)
        points = [(left + x * width, top + y * height) for x, y in places]
        self.mouse("mouseMoved", points[0])
        self.mouse("mousePressed", points[0])
        for point in points[1:]:
            self.mouse("mouseMoved", point)
        self.mouse("mouseReleased", points[-1])

    def hover(self, selector, x, y):
        left, top, width, height = self.box(selector)
        self.mouse("mouseMoved", (left + x * width, top + y * height))

    def mouse(self, kind, point):
        held = kind != "mouseMoved" or None
        extra = {"button": "left", "clickCount": 1} if held else {}
        self.send("Input.dispatchMouseEvent", type=kind, x=point[0], y=point[1], **extra)

    def press(self, key, text=""):
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32, "Enter": 13, "Escape": 27}
        for kind in ("keyDown", "keyUp"):
            own = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code.get(key, 0), **own)

    def screenshot(self, path, whole=True):
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def complaints(self):
        """Errors and warnings of the console, exceptions, and what a policy or the network refused."""
        self.run("0")  # whatever was said until now has come
        found = []
        for event in self.events:
            kind, params = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", str(params)))
            if kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            if kind == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        return found

    def asked(self):
        """Addresses that the page asked for."""
        self.run("0")
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]

    def close(self):
        self.session = None
        try:
            self.send("Browser.close")
        except (websocket.WebSocketException, OSError):
            self.process.terminate()
        self.socket.close()
        self.process.wait(30)


def _port(path):
    lines = path.read_text().split("\n") if path.is_file() else []
    return lines[:2] if len(lines) >= 2 and lines[1] else None
