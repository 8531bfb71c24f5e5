"""Debian's Chromium, without a screen, by its driver: WebDriver over plain HTTP, from the standard
library alone.

Faults: the driver may not start, and a page may hang; each command has a time limit. The browser
ends with its driver, and the driver with the test.
"""

import base64
import contextlib
import json
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {
    "Enter": "\ue007", "Tab": "\ue004", "Escape": "\ue00c", "ArrowLeft": "\ue012",
    "ArrowRight": "\ue014", "Shift": "\ue008",
}
# The root of a container has no sandbox of its own to give.
ARGUMENTS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--window-size=1400,1000", "--hide-scrollbars",
]
WAIT_S = 15


class BrowserError(Exception):
    """What WebDriver says went wrong."""


class Browser:
    """A browser with one tab."""

    def __init__(self, t):
        t.need("chromedriver", "chromium")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.t = t
        home = pathlib.Path(t.dir).resolve() / "browser"
        home.mkdir(exist_ok=True)
        self.log = open(home / "driver.log", "wb")
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        t.later(self.end)
        deadline = time.monotonic() + 20
        while not self.ready():
            assert self.driver.poll() is None and time.monotonic() < deadline, (
                "chromedriver does not start"
            )
            time.sleep(0.05)
        options = {"args": [*ARGUMENTS, f"--user-data-dir={home / 'profile'}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})[
            "sessionId"
        ]

    def ready(self):
        with contextlib.suppress(OSError):
            return self.call("GET", "/status")["ready"]
        return False

    def end(self):
        with contextlib.suppress(OSError, BrowserError, AttributeError):
            self.command("DELETE", "")
        self.driver.terminate()
        self.driver.wait(20)
        self.log.close()

    # Commands.

    def call(self, method, path, fields=None):
        body = None if fields is None else json.dumps(fields).encode()
        request = urllib.request.Request(
            self.base + path, body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise BrowserError(
                f"{method} {path}: {value['error']}: {value['message'].splitlines()[0]}"
            ) from None

    def command(self, method, path, fields=None):
        return self.call(method, f"/session/{self.session}{path}", fields)

    def devtools(self, name, **parameters):
        """A command of the Chrome DevTools protocol."""
        return self.command("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, url):
        self.command("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """What a script returns; it is the body of a function."""
        return self.command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def size(self, width, height, scale=1, mobile=False):
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=mobile,
        )

    def scheme(self, name):
        """Light or dark."""
        self.devtools(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )

    def picture(self, path, whole=False):
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def messages(self):
        """What the console has said since the last time: (level, text)."""
        return [
            (entry["level"], entry["message"])
            for entry in self.command("POST", "/se/log", {"type": "browser"})
        ]

    # Elements, by selectors of CSS.

    def find(self, selector):
        return self.command("POST", "/element", {"using": "css selector", "value": selector})[
            ELEMENT
        ]

    def text(self, selector):
        return self.run(
            "const e = document.querySelector(arguments[0]); return e && e.innerText", selector
        )

    def all(self, selector):
        """The text of all of them."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector
        )

    def click(self, selector):
        self.wait(lambda: self.clicked(selector), f"{selector} cannot be clicked")

    def clicked(self, selector):
        with contextlib.suppress(BrowserError):
            self.command("POST", f"/element/{self.find(selector)}/click", {})
            return True
        return False

    def press(self, name, text):
        """The button with this text, within the element of a selector."""
        script = (
            """const all = [...document.querySelectorAll(arguments[0] + " button")];
            const found = all.find((one) => one.textContent === arguments[1] && """
            """!one.disabled && one.offsetParent !== null);
            if (found) found.click();
            return found !== undefined"""
        )
        self.wait(lambda: self.run(script, name, text), f"no button {text!r} in {name}")

    def type(self, selector, text, clear=True):
        element = self.wait(lambda: self.emptied(selector, clear), f"{selector} takes no text")
        self.command("POST", f"/element/{element}/value", {"text": text})

    def emptied(self, selector, clear):
        """The field, if it is there and can be used by now."""
        with contextlib.suppress(BrowserError):
            element = self.find(selector)
            if clear:
                self.command("POST", f"/element/{element}/clear", {})
            return element
        return None

    def choose(self, selector, value):
        self.run(
            (
                """const e = document.querySelector(arguments[0]); e.value = arguments[1];
            e.dispatchEvent(new Event("input", { bubbles: true })); """
                """e.dispatchEvent(new Event("change", { bubbles: true }))"""
            ),
            selector,
            value,
        )

    def keys(self, *keys):
        """Keys one after the other, wherever the focus is: names of KEYS, or text."""
        actions = []
        for key in keys:
            for letter in [KEYS[key]] if key in KEYS else key:
                actions += [
                    {"type": "keyDown", "value": letter},
                    {"type": "keyUp", "value": letter},
                ]
        self.command(
            "POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        )

    def wait(self, condition, otherwise, seconds=WAIT_S):
        """Waits until a condition holds; returns what it did."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, otherwise() if callable(otherwise) else otherwise
            time.sleep(0.05)
        return found

    def wait_text(self, selector, part, seconds=WAIT_S):
        self.wait(
            lambda: part in (self.text(selector) or ""),
            lambda: f"{selector} has no {part!r}: {self.text(selector)!r}",
            seconds,
        )
