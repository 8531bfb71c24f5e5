"""What `forebay explain` says of a server, and reads that many of which are slow."""

import json
import re

import nbd

# Of the slow requests so many are named rightly.
NAMED = 0.99


class Explain:
    """`forebay explain` of one server."""

    def __init__(self, t, server):
        self.t = t
        self.server = server

    def __call__(self, *words):
        return self.t.forebay("explain", *words, "--socket", self.server.control).stdout

    def slow(self, slower_than, kind):
        """So many requests were slower."""
        return self.of(slower_than, kind)["classes"][0]["slow_requests"]

    def of(self, slower_than, kind):
        return json.loads(self("--slower-than", slower_than, "--class", kind, "--json"))

    def named(self, slower_than, kind, is_right, least):
        """At least so many requests were slower, and nearly all of them for the right reason."""
        answer = self.of(slower_than, kind)
        (of,) = answer["classes"]
        right = sum(cause["requests"] for cause in of["causes"] if is_right(cause))
        assert of["slow_requests"] >= least, of
        assert right >= NAMED * of["slow_requests"], of["causes"]
        text = self("--slower-than", slower_than, "--class", kind)
        assert without_rates(of["verdict"]) in without_rates(text), (of["verdict"], text)
        assert "the slowest requests:" in text, text
        for slow in answer["slowest"]:
            parts = sum(part["us"] for part in slow["parts"])
            assert abs(parts - slow["duration_us"]) <= 1, slow
        return of


def without_rates(text):
    """The text of one answer may be compared with another's: rates are those of when it is asked
    for."""
    return re.sub(r" at [0-9.]+ \S*B/s", "", text)


def reads(handle, places):
    """Reads of a block at all of these places at once."""
    ended = [0]

    def done(_):
        ended[0] += 1
        return 1

    for place in places:
        handle.aio_pread(nbd.Buffer(4096), place, completion=done)
    while ended[0] < len(places):
        handle.poll(-1)
