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
