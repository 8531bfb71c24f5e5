"""Answers of the HTTP API are what its OpenAPI document says. What `forebay status`, `explain`,
`config` and `clients` print with --json is held against the same descriptions wherever a test asks
for it (`harness.schema`), so the states that other tests make are held, too."""

import urllib.parse

from clients.http import up

from harness.case import limit, once
from harness.data import GIB, MIB, noise
from harness.schema import check, kept


class Answers:
    """The API of a server, of which each answer is held against the document."""

    def __init__(self, api):
        self.api = api
        self.document = api("GET", "/v1/openapi.json")
        assert self.document == kept(), "docs/openapi.json is not the one that the server has"

    def __call__(self, method, route, fields=None, query="", **names):
        path = route
        for name, value in names.items():
            path = path.replace("{" + name + "}", urllib.parse.quote(str(value), safe=""))
        assert "{" not in path, path
        answer = self.api(method, path + query, fields)
        check(self.document, method, route, answer)
        return answer

    def all(self):
        """Everything that can be asked for. The status and all explanations."""
        # It has no answer, an event stream, or text.
        others = {"/v1/events", "/metrics"}
        if not self.api("GET", "/v1/status").get("cache"):
            others.add("/v1/cache")
        told = {
            path: self("GET", path)
            for path, methods in self.document["paths"].items()
            if "get" in methods and "{" not in path and path not in others
        }
        for one in told["/v1/settings"]:
            self("GET", "/v1/settings/{key}", key=one["key"])
        for one in told["/v1/volumes"][:3]:
            self("GET", "/v1/volumes/{name}", name=one["name"])
            query = "?slower_than_us=0&volume=" + urllib.parse.quote(one["name"])
            self("GET", "/v1/explain", query=query)
        for one in told["/v1/snapshots"]:
            self("GET", "/v1/snapshots/{name}", name=f"{one['volume']}@{one['name']}")
        for one in told["/v1/status"]["health"]:
            self("GET", "/v1/problems/{page}", page=one["page"])
        for one in told["/v1/jobs"]:
            self("GET", "/v1/jobs/{id}", id=one["job"])
        return told["/v1/status"], self("GET", "/v1/explain", query="?slower_than_us=0")


@once
@limit(120)
def test_answers(t):
    """Of a new server, one that has done much, one with devices and volumes of all sorts, and one
    without a cache and without a volume."""
    server, unix, _ = up(t, "--cache-size", "64M", "--emulate", "hdd")
    ask = Answers(unix)
    _, explained = ask.all()
    now = {"requests": 0, "more": False, "longest_us": 0, "oldest": [], "text": None}
    nothing = {"slower_than_us": 0, "classes": [], "slowest": [], "under_way": now}
    assert explained == nothing, explained
    handle = server.connect()
    for at in range(0, 32 * MIB, MIB):
        handle.pwrite(noise(("answers", at), MIB), at)
        handle.pread(MIB, at)
    handle.flush()
    handle.trim(MIB, 0)
    handle.zero(MIB, MIB)
    ask("PUT", "/v1/volumes/{name}/limit", {"iops": 100000}, name="vol0")
    ask("POST", "/v1/snapshots", {"snapshots": ["vol0@a b"]})
    ask("POST", "/v1/scrub", {"rate": MIB})
    for wait in ("false", "true"):
        unix("POST", f"/v1/cache/flush?wait={wait}", expect=(200, 202))
        unix("POST", f"/v1/gc?wait={wait}", expect=(200, 202))
        status, explained = ask.all()
    classes = {one["class"] for one in explained["classes"]}
    assert {"read", "write", "flush", "discard"} <= classes and explained["slowest"], explained
    assert status["cache"]["state"] == "serving" and status["pool"]["scrub"]["state"] == "running"
    assert status["volumes"][0]["requests"]["write"]["count"] == 32, status["volumes"]
    for key, value in (
        ("scrub.at", "02:30"), ("scrub.at", "any"), ("cache.promote", "never"), ("max_lag", "9s"),
        ("cache.gc_min_nodes", 99), ("scrub.rate", "1M"),
    ):
        ask("PUT", "/v1/settings/{key}", {"value": value}, key=key)
    # A device is out of use; others come, one of them as a spare; everything gets a second copy.
    first = ask("GET", "/v1/devices")[0]["id"]
    ask("POST", "/v1/devices/{id}/offline", id=first)
    status, _ = ask.all()
    assert status["pool"]["state"] == "degraded", status
    [problem] = status["health"]
    assert (problem["device"], problem["action"]) == (first, "device-online"), problem
    ask("POST", "/v1/devices/{id}/online", id=first)
    for path, spare in zip(t.devices(2 * GIB, 2 * GIB), (False, True)):
        ask("POST", "/v1/devices", {"device": str(path), "spare": spare})
    ask("PUT", "/v1/pool/copies", {"copies": 2})
    ask("POST", "/v1/scrub/pause")
    status, _ = ask.all()
    pool = status["pool"]
    assert pool["scrub"]["state"] == "paused" and pool["spares"]["left"] == 1, pool
    assert [one["state"] for one in pool["devices"]].count("spare") == 1, pool
    # Many volumes, and then none, without a cache.
    for number in range(60):
        ask("POST", "/v1/volumes", {"name": f"one of many {number}", "size_bytes": MIB})
    unix("DELETE", "/v1/cache?wait=true")
    status, _ = ask.all()
    assert len(status["volumes"]) == 61 and "cache" not in status, status
    handle.shutdown()
    ask("PUT", "/v1/snapshots/{name}/name", {"to": "c"}, name="vol0@a b")
    ask("DELETE", "/v1/snapshots/{name}", name="vol0@c")
    for one in ask("GET", "/v1/volumes"):
        ask("DELETE", "/v1/volumes/{name}", query="?force=true", name=one["name"])
    status, _ = ask.all()
    assert status["volumes"] == [], status
    assert set(ask.document["components"]["schemas"]["Health"]["required"]) == {"state", "pages"}
    server.stop()
