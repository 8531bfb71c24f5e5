"""The dashboard in a real browser: every part of the page and every action, each confirmed by the
API."""

import contextlib
import os
import signal
import threading
import time

from clients.http import Api, free_port, up

from harness.browser import Browser
from harness.case import limit, once
from harness.data import GIB, KIB, MIB, noise

# What breaks the page's own rules is noted from the first moment on.
WATCH = """window.broken = [];
addEventListener("securitypolicyviolation", (event) => \
window.broken.push(event.violatedDirective + " " + event.blockedURI));
addEventListener("error", (event) => window.broken.push(event.message));
addEventListener("unhandledrejection", (event) => window.broken.push(String(event.reason)))"""

# All text on the page whose colour differs too little from what is behind it (WCAG: 4.5 to 1), and
# what of it is so.
FAINT = """
const parse = (text) => text.match(/[0-9.]+/g).map(Number);
const channel = (n) => (n /= 255) <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const behind = (e) => { for (; e; e = e.parentElement) { \
const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length < 4 || c[3] > 0) return c } return [255, 255, 255] };
const found = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility() || e.disabled || \
e.closest("script, style, noscript, datalist, option")) continue;
  const style = getComputedStyle(e);
  const [a, b] = [light(parse(e.ownerSVGElement ? style.fill : style.color)), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.push(\
`${e.tagName} ${e.className.baseVal ?? e.className} \
${e.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return found"""


class Page:
    """The page of one server, opened with its token."""

    def __init__(self, t, port, token, width=1400, height=1000):
        self.port, self.token = port, token
        self.browser = browser = Browser(t)
        browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        browser.size(width, height)
        browser.open(f"http://localhost:{port}/")

    def enter(self):
        self.browser.wait_text("dialog", "A token is needed")
        self.browser.type("dialog input", self.token)
        self.browser.press("dialog", "Open")
        self.browser.wait_text("#live", "live")
        self.browser.wait(lambda: self.browser.text("#verdict"), "no health is shown")
        return self

    def change(self, volume):
        """The dialog of one volume."""
        self.browser.wait(
            lambda: volume in self.names(), lambda: f"{volume} is not in {self.names()}"
        )
        self.browser.run(
            (
                "[...document.querySelectorAll('#volume-rows tr')]"
                ".find((tr) => tr.firstChild.innerText === arguments[0])"
                ".querySelector('button').click()"
            ),
            volume,
        )
        self.browser.wait_text("dialog h2", f"Volume {volume}")

    def names(self):
        return self.browser.all("#volume-rows th")

    def row(self, volume):
        script = (
            "const tr = [...document.querySelectorAll('#volume-rows tr')]"
            ".find((tr) => tr.firstChild.innerText === arguments[0]); return tr && tr.innerText"
        )
        return self.browser.run(script, volume) or ""

    def said(self, part):
        self.browser.wait_text("#said", part)

    def closed(self):
        self.browser.wait(
            lambda: self.browser.run("return document.querySelector('dialog') === null"),
            lambda: f"still open: {self.browser.text('dialog')}",
        )

    def check(self, refused=False, stopped=False):
        """Nothing has gone wrong in the browser; but for what the API refused, where that was
        meant, and what a server said while it stopped and was gone."""
        broken = self.browser.run("return window.broken")
        assert broken == [], broken
        allowed = (
            ["(Unauthorized)"]
            + ["status of 4"] * refused
            + ["status of 503", "ERR_CONNECTION", "ERR_EMPTY_RESPONSE"] * stopped
        )
        bad = [
            text
            for level, text in self.browser.messages()
            if level != "INFO" and not any(word in text for word in allowed)
        ]
        assert bad == [], bad


# For what takes seconds to write back.
SLOW_ROOM = {"size": "2G", "volume_size": "512M"}


def opened(t, *more, room=None, **size):
    server, api, tcp = up(t, *(more or ("--cache-size", "64M")), room=room)
    page = Page(t, tcp.place, tcp.token, **size).enter()
    return server, api, page, page.browser


@contextlib.contextmanager
def load(server, seconds=60, rate=200):
    """Reads and writes that go on meanwhile."""
    stop = threading.Event()

    def work():
        handle = server.connect()
        handle.pwrite(noise("dashboard", 8 * MIB), 0)
        began = time.monotonic()
        for at in range(seconds * rate):
            if stop.wait(max(0, began + at / rate - time.monotonic())):
                return
            if at % 2:
                handle.pread(16 * KIB, at % 512 * 16 * KIB)
            else:
                handle.pwrite(noise(f"dashboard {at % 8}", 16 * KIB), at % 512 * 16 * KIB)
            if at % 20 == 0:
                handle.flush()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


@once
@limit(90)
def test_what_is_shown(t):
    """Every part has what the API says; charts have lines; requests that were slow are
    explained."""
    server, api, tcp = up(t, "--cache-size", "64M")
    page = Page(t, tcp.place, tcp.token)
    browser = page.browser
    browser.wait_text("dialog", "A token is needed")
    assert "Authorization" not in browser.text("dialog"), browser.text("dialog")
    browser.keys("Escape")
    browser.type("dialog input", "not-the-right-token")
    browser.press("dialog", "Open")
    browser.wait_text("dialog .trouble", "the token is not the right one")
    with load(server):
        page.enter()
        assert browser.text("#verdict") == "Nothing is wrong."
        assert browser.run("return document.title").startswith("ok ")
        status = api("GET", "/v1/status")
        served = browser.text("#served")
        for part in ("1 volume", "client connection", "2 copies", status["server"]["version"]):
            assert part in served, (part, served)
        # The first sample is there after ten seconds.
        lines = (
            "return [...document.querySelectorAll('.chart')]"
            ".map((c) => c.querySelectorAll('path.line').length)"
        )
        browser.wait(
            lambda: sum(n > 0 for n in browser.run(lines)) >= 7,
            lambda: f"lines of charts: {browser.run(lines)}",
            30,
        )
        # It may be of the time before the load.
        browser.wait(
            lambda: figures(browser)["Reads"] not in ("–", "0/s"), lambda: str(figures(browser)), 20
        )
        now = figures(browser)
        assert (
            now["Reads"].endswith("/s") and now["Dirty"].endswith("B") and now["Lag"].endswith("s")
        ), now
        assert now["Write p99"].endswith("s") and now["Write p99"] != "–", now
        keys_move_through_time(browser)
        browser.wait(
            lambda: "/s" in page.row("vol0") and "writeback" in page.row("vol0"),
            lambda: page.row("vol0"),
        )
        cache = browser.text("#cache")
        for part in ("serving", "max_lag", "target", "dirty", "Controller"):
            assert part in cache, (part, cache)
        devices = browser.text("#device-rows")
        for part in ("pool0.img", "pool1.img", "(cache)", "online", "none"):
            assert part in devices, (part, devices)
        browser.choose("[name=slower_than_us]", "1000")
        browser.wait_text("#explanation", "of")
        browser.choose("[name=class]", "write")
        browser.wait(
            lambda: (
                browser.all("#explanation h3")
                and all(h.startswith("write") for h in browser.all("#explanation h3"))
            ),
            "not writes alone",
        )
        assert "writes took up to" in browser.text("#explanation .verdict")
        browser.type("[name=volume]", "vol7")
        browser.press("#explain", "Explain")
        browser.wait_text("#explain-trouble", "vol7")
    page.check(refused=True)
    assert browser.run("return document.querySelectorAll('[style]').length") == 0


def figures(browser):
    return dict(zip(browser.all("#figures dt"), browser.all("#figures dd")))


def keys_move_through_time(browser):
    browser.run("document.querySelector('.chart').focus()")
    browser.keys("ArrowLeft")
    assert "reads" in browser.run("return document.getElementById('readout').textContent")
    assert browser.run("return document.querySelectorAll('line.cursor').length") == 9, (
        "all charts share the cursor"
    )
    browser.keys("Escape")
    assert browser.run("return document.querySelectorAll('line.cursor').length") == 0


@once
@limit(120)
def test_volumes(t):
    """A volume is made, resized, given another mode and a limit, and deleted; what is wrong is said
    in the API's words."""
    _, api, page, browser = opened(t)

    def volume(name):
        return api("GET", f"/v1/volumes/{name}")

    def refused(part):
        browser.wait_text("dialog .trouble", part)

    def create(name, size):
        browser.type("dialog [name=name]", name)
        browser.type("dialog [name=size]", size)
        browser.press("dialog", "Create")

    browser.click("#create")
    create("a/b", "1G")
    refused('"a/b" cannot be the name of a volume')
    create("vm1", "large")
    refused('size_bytes is "large"')
    create("vm1", "24M")
    page.closed()
    page.said("vm1 is there")
    assert volume("vm1")["size_bytes"] == 24 * MIB

    page.change("vm1")
    browser.type("dialog [name=size]", "1.5 GiB")
    browser.press("dialog", "Resize")
    page.closed()
    assert volume("vm1")["size_bytes"] == GIB * 3 // 2
    browser.wait(lambda: "1.50 GiB" in page.row("vm1"), lambda: page.row("vm1"))
    page.change("vm1")
    browser.wait(
        lambda: browser.run("return document.querySelector('dialog [name=size]').value") == "1536M",
        "the size that it has is not in the field",
    )
    browser.type("dialog [name=size]", "1G")
    browser.press("dialog", "Resize")
    refused("cuts off 512 MiB")
    assert volume("vm1")["size_bytes"] == GIB * 3 // 2
    browser.press("dialog", "Resize")
    page.closed()
    assert volume("vm1")["size_bytes"] == GIB

    page.change("vm1")
    browser.choose("dialog [name=mode]", "writethrough")
    browser.press("dialog", "Set mode")
    page.closed()
    assert volume("vm1")["cache_mode"] == "writethrough"
    browser.wait(lambda: "writethrough" in page.row("vm1"), lambda: page.row("vm1"))

    page.change("vm1")
    browser.type("dialog [name=iops]", "many")
    browser.press("dialog", "Set limit")
    browser.wait(
        lambda: any("iops is" in text for text in browser.all("dialog .trouble")),
        "the error is not shown",
    )
    browser.type("dialog [name=iops]", "500")
    browser.type("dialog [name=bytes_per_second]", "50M")
    browser.press("dialog", "Set limit")
    page.closed()
    found = volume("vm1")["limit"]
    assert (found["iops"], found["bytes_per_second"]) == (500, 50 * MIB), found
    browser.wait(
        lambda: "500/s" in page.row("vm1") and "50 MiB/s" in page.row("vm1"),
        lambda: page.row("vm1"),
    )

    page.change("vm1")
    browser.choose("dialog [name=read_only]", "true")
    browser.run("document.querySelector('dialog [name=read_only]').form.requestSubmit()")
    page.closed()
    page.said("Clients may only read vm1")
    assert volume("vm1")["read_only"] is True
    browser.wait(lambda: "read-only" in page.row("vm1"), lambda: page.row("vm1"))
    page.change("vm1")
    browser.choose("dialog [name=read_only]", "false")
    browser.run("document.querySelector('dialog [name=read_only]').form.requestSubmit()")
    page.closed()
    assert volume("vm1")["read_only"] is False

    page.change("vm1")
    browser.press("dialog", "Delete…")
    browser.wait_text("dialog h2", "Delete vm1")
    assert browser.run("return document.querySelector('dialog button.danger').disabled")
    browser.type("dialog [name=name]", "vm")
    assert browser.run("return document.querySelector('dialog button.danger').disabled")
    browser.type("dialog [name=name]", "vm1")
    browser.press("dialog", "Delete")
    page.closed()
    api("GET", "/v1/volumes/vm1", expect=404)
    browser.wait(lambda: page.names() == ["vol0"], lambda: str(page.names()))
    strange_names(api, page)
    page.check(refused=True)


def strange_names(api, page):
    """Names are text, whatever they hold."""
    browser = page.browser
    names = [
        '<img src=x onerror="window.broken.push(1)">',
        "<script>broken.push(2)<script>",
        "a ü&b %20?#",
        "x" * 64,
    ]
    for name in names:
        api("POST", "/v1/volumes", {"name": name, "size_bytes": MIB})
    browser.wait(lambda: set(names) < set(page.names()), lambda: str(page.names()))
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    for name in names[:3]:
        page.change(name)
        browser.press("dialog", "Delete…")
        browser.wait_text("dialog h2", "Delete ")
        browser.type("dialog [name=name]", name)
        browser.press("dialog", "Delete")
        page.closed()
        browser.wait(
            lambda name=name: name not in [one["name"] for one in api("GET", "/v1/volumes")],
            f"{name} is not deleted",
        )


@once
def test_keyboard(t):
    """Keys alone reach the content, make a volume, and come back to where they were; here there is
    no cache."""
    _, api, page, browser = opened(t, "--cache-size", "0")
    assert "The pool has no cache" in browser.text("#cache") and browser.run(
        "return document.getElementById('flush').disabled"
    )
    focused = "const e = document.activeElement; return e.id || e.textContent"
    browser.run("document.activeElement.blur()")
    browser.keys("Tab")
    assert browser.run(focused) == "Skip to what is shown"
    browser.keys("Enter")
    seen = []
    while (at := browser.run(focused)) != "create":
        seen.append(at)
        assert len(seen) < 40, seen
        browser.keys("Tab")
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        inner = browser.run(
            "const e = document.activeElement; "
            "return e.type === 'radio' ? getComputedStyle(e.nextSibling).outlineStyle : ''"
        )
        assert "solid" in (outline, inner), f"no focus is seen at {browser.run(focused)}"
    browser.keys("Enter")
    browser.wait_text("dialog h2", "Create a volume")
    browser.keys("Escape")
    page.closed()
    assert browser.run(focused) == "create"
    browser.keys("Enter")
    browser.wait_text("dialog h2", "Create a volume")
    browser.keys("by keys", "Tab", "12M", "Enter")
    page.closed()
    assert api("GET", "/v1/volumes/by%20keys")["size_bytes"] == 12 * MIB
    page.check()


@once
@limit(90)
def test_jobs(t):
    """Flush, garbage collection and scrub by their buttons; a device out of use is a problem with
    an advice until it is back."""
    server, api, page, browser = opened(t)
    handle = server.connect()
    for at in range(0, 48 * MIB, 4 * MIB):
        handle.pwrite(noise("jobs", 4 * MIB), at)
    handle.flush()
    browser.press("#cache", "Flush")
    page.said("Flush of the cache: job 1")
    browser.wait(
        lambda: "done" in job(browser, "Flush of the cache (job 1)"), lambda: browser.text("#jobs")
    )
    flushed = api("GET", "/v1/jobs/1")
    assert flushed["state"] == "done" and api("GET", "/v1/cache")["dirty_bytes"] == 0
    assert flushed["progress"]["done_bytes"] == flushed["progress"]["total_bytes"] > 0, flushed
    browser.wait_text("#controller", "Nothing is dirty")
    browser.press("#cache", "Collect garbage")
    browser.wait(
        lambda: "done" in job(browser, "Garbage collection (job 2)"), lambda: browser.text("#jobs")
    )

    browser.press("#jobs", "Start a scrub…")
    browser.type("dialog [name=rate]", "slowly")
    browser.press("dialog", "Start")
    browser.wait_text("dialog .trouble", 'rate is "slowly"')
    browser.type("dialog [name=rate]", "64K")
    browser.press("dialog", "Start")
    page.closed()
    browser.wait(lambda: "running" in job(browser, "Scrub"), lambda: browser.text("#jobs"))
    assert "64 KiB/s of each copy at most" in job(browser, "Scrub")
    assert browser.run("return document.querySelector('#jobs progress').value") < 1
    for verb, state in (("Pause", "paused"), ("Resume", "running"), ("Cancel", "cancelled")):
        browser.press("#jobs", verb)
        browser.wait(
            lambda state=state: state in job(browser, "Scrub"), lambda: browser.text("#jobs")
        )
        assert api("GET", "/v1/scrub")["state"] == state
    ended = job(browser, "Scrub")
    assert "The pool's part ended" in ended and "The cache: " in ended, ended
    browser.press("#devices", "Offline…")
    browser.press("dialog", "Take out of use")
    page.closed()
    browser.wait_text("#problems", "To do: forebay device online")
    assert browser.text("#problems strong") == api("GET", "/v1/health")["problems"][0]["what"]
    assert "1 problem" in browser.run("return document.title")
    assert "offline" in browser.text("#device-rows")
    browser.press("#devices", "Online…")
    browser.press("dialog", "Take into use")
    browser.wait_text("#verdict", "Nothing is wrong.", 30)
    page.check(refused=True)


def job(browser, name):
    script = (
        "const li = [...document.querySelectorAll('#job-list li')]"
        ".find((li) => li.querySelector('strong').innerText === arguments[0]); "
        "return li && li.innerText"
    )
    return browser.run(script, name) or ""


def device(browser, name, verb):
    """A button in the row of a device, whose path ends so."""
    script = (
        """const tr = [...document.querySelectorAll("#device-rows tr")]"""
        """.find((tr) => tr.firstChild.innerText.endsWith(arguments[0]));
        const found = tr && [...tr.querySelectorAll("button")]"""
        """.find((one) => one.innerText === arguments[1] && !one.hidden);
        if (found) found.click();
        return Boolean(found)"""
    )
    browser.wait(
        lambda: browser.run(script, name, verb),
        lambda: f"no {verb} of {name}: {browser.text('#device-rows')}",
        30,
    )
    browser.wait_text("dialog h2", name)


@once
@limit(120)
def test_cancel(t):
    """A detach that takes its time shows how far it is, and is cancelled by its button."""
    server, api, page, browser = opened(
        t, "--cache-size", "1G", "--emulate", "hdd", "--max-lag", "1h", room=SLOW_ROOM
    )
    handle = server.connect()
    for at in range(0, 400 * MIB, 4 * MIB):
        handle.pwrite(noise(f"cancel {at % 7}", 4 * MIB), at)
    handle.flush()
    browser.press("#cache", "Detach…")
    browser.press("dialog", "Detach")
    page.closed()
    name = "Detaching the cache (job 1)"
    browser.wait(lambda: "written back" in job(browser, name), lambda: browser.text("#jobs"))
    browser.press("#job-list", "Cancel")
    page.said("Job 1 is cancelled.")
    browser.wait(lambda: "cancelled" in job(browser, name), lambda: browser.text("#jobs"))
    assert api("GET", "/v1/jobs/1")["state"] == "cancelled"
    assert api("GET", "/v1/cache")["state"] == "serving"
    assert "Cancel" not in job(browser, name)
    page.check()


@once
@limit(120)
def test_devices(t):
    """Devices are added, also as a spare, grown, replaced, balanced and removed by the page; moves
    rest, go on and are cancelled."""
    server, api, page, browser = opened(t, "--cache-size", "0")
    handle = server.connect()
    for at in range(0, 48 * MIB, 4 * MIB):
        handle.pwrite(noise("devices", 4 * MIB), at)
    handle.flush()
    new = t.devices(GIB, GIB, GIB)

    def devices():
        return {one["path"].rsplit("/", 1)[-1]: one for one in api("GET", "/v1/devices")}

    def add(path, **fields):
        browser.press("#devices", "Add a device…")
        browser.type("dialog [name=device]", str(path))
        for name, value in fields.items():
            browser.choose(f"dialog [name={name}]", value)
        browser.press("dialog", "Add")

    def settled():
        browser.wait(
            lambda: api("GET", "/v1/moves")["state"] == "none",
            lambda: str(api("GET", "/v1/moves")),
            60,
        )

    add("/nowhere/at/all")
    browser.wait_text("dialog .trouble", "/nowhere/at/all")
    browser.keys("Escape")
    add(new[0])
    page.closed()
    page.said(f"{new[0]} is a device of the pool")
    assert devices()["device0.img"]["state"] == "online"
    add(new[1], spare="yes", force="yes")
    page.closed()
    assert devices()["device1.img"]["state"] == "spare"
    browser.wait_text("#device-rows", "spare")

    # What moves rests at first, so that each button is met in time.
    browser.press("#devices", "Rebalance…")
    browser.press("dialog", "Rebalance")
    page.closed()
    page.said("filled to the same share")
    settled()
    api("POST", "/v1/moves/pause")
    device(browser, "device0.img", "Change…")
    browser.type("dialog form:last-of-type [name=name]", str(new[0])[:-1])
    assert browser.run("return document.querySelector('dialog button.danger').disabled")
    browser.type("dialog form:last-of-type [name=name]", str(new[0]))
    browser.press("dialog", "Remove")
    page.closed()
    moves = "Moves between devices"
    browser.wait(lambda: "paused" in job(browser, moves), lambda: browser.text("#jobs"))
    browser.press("#jobs", "Resume")
    browser.wait(lambda: api("GET", "/v1/moves")["state"] != "paused", "they do not go on")
    browser.wait(lambda: "device0.img" not in devices(), lambda: str(devices()), 60)
    browser.wait(lambda: "device0.img" not in browser.text("#device-rows"), "it is still shown")

    api("POST", "/v1/moves/pause")
    device(browser, "pool1.img", "Change…")
    browser.type("dialog [name=device]", str(new[2]))
    browser.press("dialog", "Replace")
    page.closed()
    page.said("takes the place of")
    browser.wait(lambda: "will be removed" in job(browser, moves), lambda: browser.text("#jobs"))
    browser.press("#jobs", "Cancel…")
    browser.press("dialog", "Cancel the moves")
    page.closed()
    browser.wait(lambda: devices()["pool1.img"]["state"] == "online", lambda: str(devices()))
    api("POST", "/v1/moves/resume")
    settled()

    device(browser, "device2.img", "Change…")
    browser.type("dialog [name=size]", "2G")
    browser.press("dialog", "Grow")
    page.closed()
    assert new[2].stat().st_size == 2 * GIB and devices()["device2.img"]["capacity_bytes"] > GIB
    browser.press("#devices", "Copies…")
    browser.choose("dialog [name=copies]", "3")
    browser.press("dialog", "Set")
    page.closed()
    assert api("GET", "/v1/status")["pool"]["copies"] == 3
    settled()
    page.check(refused=True)


@once
@limit(90)
def test_cache(t):
    """A cache is attached, and let go; what is wrong is said."""
    server, api, page, browser = opened(t, "--cache-size", "0")
    handle = server.connect()
    assert "The pool has no cache" in browser.text("#cache")

    def attach(path, size):
        browser.press("#cache", "Attach a cache…")
        browser.type("dialog [name=path]", str(path))
        browser.type("dialog [name=size]", size)
        browser.press("dialog", "Attach")

    attach("/nowhere/c.img", "64M")
    browser.wait_text("dialog .trouble", "/nowhere: No such file")
    browser.keys("Escape")
    attach(t.dir / "fast.img", "64M")
    page.closed()
    page.said("is the pool's cache")
    assert api("GET", "/v1/cache")["state"] == "serving"
    browser.wait_text("#cache", "max_lag")
    for at in range(0, 16 * MIB, 4 * MIB):
        handle.pwrite(noise("cache", 4 * MIB), at)
    browser.press("#cache", "Detach…")
    browser.press("dialog", "Detach")
    page.closed()
    page.said("Detach of the cache: job 1")
    browser.wait(
        lambda: "done" in job(browser, "Detaching the cache (job 1)"),
        lambda: browser.text("#jobs"),
        30,
    )
    api("GET", "/v1/cache", expect=404)
    browser.wait_text("#cache", "The pool has no cache")
    assert handle.pread(4 * MIB, 0) == noise("cache", 4 * MIB)
    page.check(refused=True)


@once
@limit(90)
def test_settings(t):
    """Settings are found, changed, refused, and saved where there is a file for it."""
    [device], port, config = t.devices(GIB), free_port(), t.dir / "forebay.toml"
    t.forebay("create", "--device", device, "--cache", t.dir / "fast.img", "--cache-size", "64M")
    (t.dir / "token").write_text("a-token-of-the-test")
    (t.dir / "token").chmod(0o600)
    places = f'listen = ["127.0.0.1:{port}"]\ntoken_file = "{t.dir}/token"\n'
    pool = (
        f'devices = ["{device}"]\n[control]\nsocket = "{t.dir}/control.sock"\n[nbd]\n'
        f'socket = "{t.dir}/nbd.sock"\n'
    )
    config.write_text(f'{pool}[http]\n{places}[cache]\npath = "{t.dir}/fast.img"\nmax_lag = "8s"\n')
    server = t.serve([], start=False)
    server.command = [str(t.bin), "serve", "--config", str(config)]
    server.start()
    api = Api(port, "a-token-of-the-test")
    page = Page(t, port, api.token).enter()
    browser = page.browser
    rows = "#setting-rows tr"

    def setting(key):
        return (
            browser.run(
                (
                    "const tr = [...document.querySelectorAll('#setting-rows tr')]"
                    ".find((tr) => tr.firstChild.innerText === arguments[0]); "
                    "return tr && tr.innerText"
                ),
                key,
            )
            or ""
        )

    def change(key, value, save=""):
        label = f"#setting-rows button[aria-label='Set {key}']"
        browser.wait(
            lambda: browser.run(
                "const e = document.querySelector(arguments[0]); e?.click(); return Boolean(e)",
                label,
            ),
            f"no {key}",
        )
        browser.wait_text("dialog h2", f"Setting {key}")
        browser.type("dialog [name=value]", value)
        browser.choose("dialog [name=save]", save)
        browser.press("dialog", "Set")

    browser.wait(
        lambda: "configuration" in setting("cache.max_lag"), lambda: browser.text("#settings")
    )
    browser.press("#settings", f"Show all {len(api('GET', '/v1/settings'))}")
    assert len(browser.all(rows)) == len(api("GET", "/v1/settings"))
    assert (
        browser.run(
            "return document.querySelector("
            "\"#setting-rows button[aria-label='Set nbd.max_connections']\")"
        )
        is None
    ), "it changes at a restart"
    browser.type("#settings-filter", "lag")
    assert 0 < len(browser.all(rows)) < 6, browser.all(rows)
    change("cache.max_lag", "soon")
    browser.wait_text("dialog .trouble", "max_lag")
    browser.type("dialog [name=value]", "9s")
    browser.press("dialog", "Set")
    page.closed()
    browser.wait(lambda: "9s" in setting("cache.max_lag"), lambda: setting("cache.max_lag"))
    assert api("GET", "/v1/settings/cache.max_lag")["value"] == "9s" and "8s" in config.read_text()
    change("cache.max_lag", "7s", "yes")
    page.closed()
    page.said("is saved")
    assert "7s" in config.read_text(), config.read_text()
    page.check(refused=True)


@once
def test_comes_back(t):
    """A server that is gone is said to be gone; the page goes on when it is back, with what it has
    now."""
    server, api, page, browser = opened(t)
    # One that stands still is not live, long before a request is given up.
    os.kill(server.pid, signal.SIGSTOP)
    browser.wait_text("#live", "s ago", 10)
    assert "warn" in browser.run("return document.getElementById('live').className")
    os.kill(server.pid, signal.SIGCONT)
    browser.wait_text("#live", "live")
    server.stop()
    browser.wait_text("#connection", "The server does not answer")
    assert browser.text("#live") == "no answer" and "no answer" in browser.run(
        "return document.title"
    )
    assert "vol0" in page.names()
    browser.run("window.same = true")
    server.start()
    api("POST", "/v1/volumes", {"name": "new", "size_bytes": MIB})
    browser.wait(lambda: "new" in page.names(), "the page does not come back", 20)
    assert browser.text("#live") == "live" and browser.run(
        "return document.getElementById('connection').hidden && window.same"
    )
    browser.press("header", "Forget the token")
    browser.wait_text("dialog", "A token is needed")
    page.check(stopped=True)


@once
@limit(120)
def test_many_on_a_phone(t):
    """300 volumes on a phone: nothing scrolls sideways, a filter finds one, and both schemes are
    readable."""
    server, api, tcp = up(t, "--cache-size", "64M")
    for number in range(299):
        api(
            "POST",
            "/v1/volumes",
            {"name": f"machine-{number}-of-the-second-rack" * (1 + number % 2), "size_bytes": MIB},
        )
    page = Page(t, tcp.place, tcp.token, width=390, height=844).enter()
    browser = page.browser
    browser.wait_text("#volume-count", "12 of 300 volumes")
    assert len(page.names()) == 12
    for width in (390, 360, 768, 1400):
        browser.size(width, 844)
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= width, f"{wide} wide on {width}"
        inner = browser.run(
            "return [...document.querySelectorAll('.scroll')]"
            ".filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText)"
        )
        assert width == 768 or inner == [], f"cut off on {width}: {inner}"
    browser.size(390, 844)
    browser.type("#filter", "machine-298-")
    browser.wait_text("#volume-count", "1 of 300")
    assert page.names() == ["machine-298-of-the-second-rack"]
    browser.type("#filter", "m")
    browser.press("#volumes", "Show all 299")
    assert len(page.names()) == 299
    browser.choose("#sort", "name")
    assert page.names()[0].startswith("machine-0-")
    page.change("machine-7-of-the-second-rack" * 2)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    faint = {}
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        faint[scheme] = browser.run(FAINT)
    assert faint == {"light": [], "dark": []}, faint
    back = "return getComputedStyle(document.body).backgroundColor"
    dark = browser.run(back)
    browser.scheme("light")
    assert dark != browser.run(back) and sum(map(int, dark[4:-1].split(", "))) < 150, dark
    page.check()
    server.stop()
