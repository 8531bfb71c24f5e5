"""Parts of the dashboard in a real browser: problems and what to do about them, clients, addresses
of volumes, what happened, and charts of a young server."""

import os
import pathlib
import re

import nbd

from clients.dashboard import FAINT, opened
from clients.http import free_port
from clients.tls import handle_of, keys_file

from harness.case import limit, once
from harness.data import BLOCK, MIB, noise

DOCUMENTS = pathlib.Path(__file__).resolve().parents[2] / "docs"
FOCUSED = "return document.activeElement.textContent"


def readable(browser):
    """What is shown now has contrast, and fits on a phone."""
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        assert browser.run(FAINT) == [], scheme
    for width in (390, 360, 768, 1400):
        browser.size(width, 1000)
        assert browser.run("return document.documentElement.scrollWidth") <= width, width
        cut = browser.run(
            "return [...document.querySelectorAll('.scroll, dialog, .events')]"
            ".filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText)"
        )
        assert width == 768 or cut == [], f"cut off on {width}: {cut}"


@once
@limit(120)
def test_problems(t):
    """Each problem has a button that says what it means, and one that ends it where nothing has to
    be decided."""
    server, api, page, browser = opened(t, "--cache-size", "0")
    handle = server.connect()
    first = api("GET", "/v1/devices")[0]["id"]
    api("POST", "/v1/moves/pause")
    api("POST", f"/v1/devices/{first}/offline")
    browser.wait_text("#problems", "was taken out of use")
    browser.click("#problems button")
    browser.wait_text("dialog h2", "What to do: device-offline")
    advice = api("GET", "/v1/problems/device-offline")["text"]
    plain = " ".join(re.sub(r"\*\*|`", "", advice).split())
    assert " ".join(browser.text("dialog .advice").split()) == plain
    assert browser.all("dialog .advice strong") == ["You see", "It means", "To do."]
    codes = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", advice)]
    assert codes and browser.all("dialog .advice code") == codes
    assert len(browser.all("dialog .advice p")) == 3
    readable(browser)
    browser.keys("Escape")
    page.closed()
    assert browser.run(FOCUSED) == "What to do"
    every_advice(browser, page)

    handle.pwrite(noise("problems", 4 * MIB), 0)
    handle.flush()
    browser.press("#problems", "Take into use…")
    browser.wait_text("dialog h2", "Take into use: ")
    browser.press("dialog", "Take into use")
    page.closed()
    browser.wait_text("#problems", "moves are paused")
    assert api("GET", "/v1/health")["pages"] == ["moves-paused"]
    browser.press("#problems", "Resume the moves")
    page.said("Moves go on.")
    browser.wait_text("#verdict", "Nothing is wrong.", 30)
    assert api("GET", "/v1/health")["state"] == "ok"
    assert api("GET", "/v1/moves")["state"] != "paused"
    assert api("GET", "/v1/devices")[0]["state"] == "online"
    page.check()


def every_advice(browser, page):
    """No section is shown with marks that should be elements."""
    document = (DOCUMENTS / "operations.md").read_text()
    names = re.findall(r"^## `(.+)`$", document, re.M)
    assert len(names) > 30, names
    for name in names:
        browser.run(
            "return import('/page/advice.js').then((m) => m.showAdvice(arguments[0]))", name
        )
        browser.wait_text("dialog h2", f"What to do: {name}")
        text = browser.text("dialog .advice")
        assert not re.search(r"[`*]", text) and "](" not in text, (name, text)
        browser.press("dialog", "Close")
        page.closed()


@once
@limit(90)
def test_clients(t):
    """Clients come and go, over a unix socket and over TCP with a key."""
    keys, port = keys_file(t), free_port()
    server, api, page, browser = opened(
        t, "--cache-size", "0", "--nbd-listen", f"127.0.0.1:{port}", "--tls-psk", str(keys)
    )
    browser.wait_text("#clients", "No client is connected.")
    api("POST", "/v1/volumes", {"name": "archive", "size_bytes": 8 * MIB})
    api("PUT", "/v1/volumes/archive/read-only", {"read_only": True})
    local = server.connect()
    browser.wait_text("#client-rows", "vol0")
    remote = handle_of(port, "archive", keys=keys, user="vm1")
    browser.wait_text("#client-rows", "archive")
    browser.wait_text("#client-count", "2 clients")
    rows = [row.split("\t") for row in browser.all("#client-rows tr")]
    clients = {one["export"]: one for one in api("GET", "/v1/clients")}
    tls, process = clients["archive"]["tls"], clients["vol0"]["process"]
    assert rows[0][:4] == [
        clients["archive"]["address"], "archive", "read", f"{tls['version']}, psk: vm1"
    ], rows
    user = "root" if os.getuid() == 0 else f"user {os.getuid()}"
    assert rows[1][:4] == [
        f"{process['program']} {os.getpid()}, {user}", "vol0", "read and write", "no"
    ], rows
    assert all(row[4] == "0" and row[5].endswith("s") for row in rows), rows
    assert all(0 <= one["connected_seconds"] < 60 for one in clients.values()), clients
    readable(browser)
    more = [server.connect() for _ in range(12)]
    browser.press("#clients", "Show all 14")
    assert len(browser.all("#client-rows tr")) == 14
    for handle in (local, remote, *more):
        handle.shutdown()
    browser.wait_text("#clients", "No client is connected.")
    assert not browser.run("return document.getElementById('client-table').checkVisibility()")
    page.check()


@once
@limit(90)
def test_addresses(t):
    """The addresses of a volume are copied, and lead to it."""
    keys, port, name = keys_file(t), free_port(), "it's (a) ü&b 100%"
    server, api, page, browser = opened(
        t, "--cache-size", "0", "--nbd-listen", f"0.0.0.0:{port}", "--tls-psk", str(keys)
    )
    api("POST", "/v1/volumes", {"name": name, "size_bytes": 8 * MIB})
    handle = server.connect(name)
    handle.pwrite(noise("addresses", BLOCK), 0)
    handle.flush()
    page.change(name)
    uris = browser.run("return [...document.querySelectorAll('.copied input')].map((e) => e.value)")
    assert [uri.split("/")[0] for uri in uris] == ["nbd+unix:", "nbds:"], uris
    # A server that listens everywhere is where the page is from.
    assert f"//localhost:{port}/" in uris[1] and not any(c in uris[1] for c in " '()&"), uris
    assert browser.all(".addresses label") == ["On the server's machine", "Over TCP, with TLS"]
    templates = api("GET", "/v1/status")["server"]["nbd_uris"]
    assert all(one.count("{volume}") == 1 for one in templates), templates
    assert browser.run("return getSelection().toString()") == uris[0], "the first is selected"
    browser.devtools(
        "Browser.grantPermissions",
        permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
        origin=f"http://localhost:{page.port}",
    )
    for place, uri in enumerate(uris, 1):
        browser.click(f".addresses .field:nth-of-type({place}) button")
        browser.wait_text(".addresses [role=status]", "Copied.")
        copied = "return navigator.clipboard.readText()"
        browser.wait(lambda uri=uri: browser.run(copied) == uri, lambda: browser.run(copied))
    readable(browser)
    # Without the clipboard of the browser, as on a page that came over HTTP from elsewhere.
    browser.run("window.board = navigator.clipboard; "
                "Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    browser.click(".addresses .field:nth-of-type(1) button")
    browser.wait(
        lambda: browser.run("return window.board.readText()") == uris[0], "it is not copied"
    )
    browser.press("dialog", "Close")
    page.closed()
    for uri in (uris[0], uris[1].replace("//", "//vm1@") + f"?tls-psk-file={keys}"):
        reader = nbd.NBD()
        reader.set_uri_allow_local_file(True)
        reader.connect_uri(uri)
        assert reader.pread(BLOCK, 0) == noise("addresses", BLOCK), uri
        reader.shutdown()
    page.check()


def told(browser):
    return browser.all("#event-list li span")


@once
@limit(120)
def test_what_happened(t):
    """What happened is listed, the newest first, while the page is open and before; a restart is
    one of the events."""
    server, api, page, browser = opened(t, "--cache-size", "0")
    browser.wait_text("#event-list", "The server began to serve.")
    first = api("GET", "/v1/devices")[0]
    api("POST", "/v1/volumes", {"name": "<b>new<b>", "size_bytes": MIB})
    browser.wait_text("#event-list", "Volume <b>new<b> was made, with 1 MiB.")
    api("POST", f"/v1/devices/{first['id']}/offline")
    browser.wait_text("#event-list", "Problem: ")
    [problem] = api("GET", "/v1/health")["problems"]
    assert f"Problem: {problem['what']}." in told(browser), told(browser)
    device = f"Device {first['path']} is offline, and was online."
    assert device in told(browser), told(browser)
    api("POST", f"/v1/devices/{first['id']}/online")
    browser.wait_text("#event-list", f"Over: {problem['what']}.")
    api("PUT", "/v1/volumes/vol0/read-only", {"read_only": True})
    browser.wait_text("#event-list", "Clients may only read volume vol0.")
    api("DELETE", "/v1/volumes/%3Cb%3Enew%3Cb%3E")
    browser.wait_text("#event-list", "Volume <b>new<b> was deleted.")
    seen = told(browser)
    assert seen[0] == "Volume <b>new<b> was deleted." and seen[-1] == "The server began to serve."
    changes = api("GET", "/v1/changes")
    assert len(seen) == changes["next"] + 1 == len(changes["changes"]) + 1, (seen, changes)
    times = browser.run(
        "return [...document.querySelectorAll('#event-list time')].map((e) => e.dateTime)"
    )
    assert times == sorted(times, reverse=True), times
    local = browser.run(
        "return new Date(arguments[0] * 1e3).toLocaleTimeString([], { hour12: false })",
        changes["changes"][-1]["at"],
    )
    assert browser.text("#event-list time") == local
    readable(browser)
    # A page that is opened anew has it all from the server.
    browser.open(f"http://localhost:{page.port}/")
    browser.wait(lambda: told(browser) == seen, lambda: str(told(browser)))
    server.stop()
    browser.wait_text("#connection", "The server does not answer")
    server.start()
    browser.wait(
        lambda: told(browser).count("The server began to serve.") == 2, lambda: str(told(browser)),
        20,
    )
    assert told(browser)[1:] == seen or told(browser)[-len(seen):] == seen, told(browser)
    for number in range(60):
        api("POST", "/v1/volumes", {"name": f"many {number}", "size_bytes": MIB})
    browser.wait_text("#event-list", "Volume many 59 was made")
    assert len(told(browser)) == 50, told(browser)
    page.check(stopped=True)


# Charts with samples of the last `arguments[0]` seconds: the title, the first place of a line and
# the marks of the axis of time.
YOUNG = """const [seconds] = arguments;
return import("/page/charts.js").then((charts) => {
  const now = Date.now() / 1e3;
  const times = [];
  for (let ago = seconds; ago >= 0; ago -= 5) times.push(now - ago);
  charts.showSamples(times, { read_requests: times.map(() => 7) }, 5);
  const chart = document.querySelector(".chart");
  const marks = [...chart.querySelectorAll(".tick")].map((e) => e.textContent);
  return [
    document.getElementById("charts-title").textContent,
    Number(/^M([0-9.]+)/.exec(chart.querySelector("path.line").getAttribute("d"))[1]),
    marks.filter((text) => text.startsWith("−")).at(-1),
    chart.querySelector("svg").clientWidth,
  ];
})"""


@once
@limit(60)
def test_charts_begin_with_what_there_is(t):
    """A server that has just begun has charts of a minute; then they grow to what was chosen."""
    _, _, page, browser = opened(t, "--cache-size", "0")
    assert browser.text("#charts-title") == "The last minute"
    browser.wait(
        lambda: browser.run("return document.querySelector('.chart path.line') !== null"),
        "no line is drawn", 30,
    )
    assert browser.text("#charts-title") == "The last minute"
    marks = browser.run("return document.querySelector('.chart svg[role]').textContent")
    assert "−15 s" in marks and "min" not in marks, marks
    left = 66
    for seconds, title, back in (
        (20, "The last minute", "−60 s"),
        (95, "The last 2 minutes", "−90 s"),
        (180, "The last 3 minutes", "−3 min"),
        (1500, "The last 25 minutes", "−25 min"),
        (3600, "The last hour", "−60 min"),
    ):
        found, begin, mark, width = browser.run(YOUNG, seconds)
        assert found == title, (seconds, found)
        if seconds < 60:
            assert begin > left + width / 2, (seconds, begin)
        else:
            assert abs(begin - left) < 1.5, (seconds, begin)
        assert mark == back or seconds in (95, 1500), (seconds, mark)
    browser.run("document.querySelector('#spans input').click()")
    found, begin, mark, _ = browser.run(YOUNG, 1500)
    assert (found, mark) == ("The last 5 minutes", "−5 min") and abs(begin - left) < 12, begin
    page.check()
