"""The HTTP API and metrics: every route, over the unix socket and TCP, with and without a token,
bad input, and fuzz."""

import http.client
import json
import random
import re
import socket
import string
import subprocess
import time
import urllib.parse

from harness.case import limit, once
from harness.data import BLOCK, GIB, KIB, MIB, noise
from harness.schema import check

ROOM = {"size": "1G", "volume_size": "64M"}


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(str(self.path))


class Api:
    """The API of one server, at one place."""

    def __init__(self, place, token=None, host=None):
        self.place, self.token, self.host = place, token, host

    def connection(self):
        return (
            http.client.HTTPConnection("127.0.0.1", self.place, timeout=30)
            if isinstance(self.place, int)
            else UnixConnection(self.place)
        )

    def raw(self, method, path, body=None, headers=None):
        """Status, headers and text of the answer."""
        headers = dict(headers or {})
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        if self.host:
            headers["Host"] = self.host
        connection = self.connection()
        try:
            try:
                connection.request(method, path, body, headers)
            except BrokenPipeError:
                # The answer to what is too long comes before all of it was sent.
                connection._HTTPConnection__state = http.client._CS_REQ_SENT
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def __call__(self, method, path, fields=None, expect=(200, 204)):
        """What a request leads to; errors are checked for their form."""
        body = None if fields is None else json.dumps(fields)
        status, headers, text = self.raw(
            method, path, body, {"Content-Type": "application/json"} if body else {}
        )
        expect = expect if isinstance(expect, tuple) else (expect,)
        assert status in expect, f"{method} {path}: {status}, not {expect}: {text}"
        if status >= 400:
            error = json.loads(text)["error"]
            assert set(error) == {"kind", "message"} and error["message"], text
            return error
        return json.loads(text) if text else None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def up(t, *more, room=None):
    """A server of `forebay up` with a port of its own: it, and its API over the unix socket and
    TCP."""
    port, home = free_port(), t.dir / "data"
    server = t.up(
        "--http-listen", f"unix:{home}/http.sock", "--http-listen", f"127.0.0.1:{port}", *more,
        **(room or ROOM),
    )
    token = (home / "http.token").read_text().strip()
    return server, Api(home / "http.sock"), Api(port, token)


SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([-+0-9.e]+|\+Inf|NaN)$")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def metrics(text):
    """Samples by name and labels."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        assert match, f"no sample: {line!r}"
        key = (match[1], tuple(sorted(LABEL.findall(match[2] or ""))))
        assert key not in found, f"twice: {line}"
        found[key] = float(match[3])
    return found


def value(samples, name, **labels):
    return samples[(name, tuple(sorted(labels.items())))]


def test_every_path_over_both(t):
    """Each route does what its command does, over the unix socket and with a token over TCP."""
    server, unix, tcp = up(t)
    for api in (unix, tcp):
        called, document = set(), api("GET", "/v1/openapi.json")

        def ask(method, path, fields=None, expect=(200, 204), real=None):
            called.add((method, path))
            answer = api(method, real or path, fields, expect)
            if expect == (200, 204):
                check(document, method, path, answer)
            return answer

        assert set(ask("GET", "/v1/status")) == set(server.status())
        assert ask("GET", "/v1/health")["state"] == "ok"
        problem = "/v1/problems/{page}"
        assert "**To do" in ask("GET", problem, real="/v1/problems/pool-full")["text"]
        ask("GET", problem, real="/v1/problems/none", expect=404)
        assert ask("GET", "/v1/changes", real="/v1/changes?from=1000000")["changes"] == []
        assert ask("GET", "/v1/history", real="/v1/history?from=1000000")["seconds_ago"] == []
        ask("POST", "/v1/volumes", {"name": "a ü&b", "size_bytes": 8 * MIB})
        ask("POST", "/v1/volumes", {"name": "a ü&b", "size_bytes": 8 * MIB}, expect=409)
        assert {v["name"] for v in ask("GET", "/v1/volumes")} == {"vol0", "a ü&b"}
        one = "/v1/volumes/a%20%C3%BC%26b"
        assert ask("GET", "/v1/volumes/{name}", real=one)["size_bytes"] == 8 * MIB
        ask("PATCH", "/v1/volumes/{name}", {"size_bytes": 16 * MIB}, real=one)
        first = lambda: ask("GET", "/v1/volumes/{name}/first-data", real=one + "/first-data")
        assert first() == {"offset": None}
        handle = server.connect("a ü&b")
        handle.pwrite(noise("first", BLOCK), 3 * MIB)
        handle.flush()
        handle.shutdown()
        assert first() == {"offset": 3 * MIB}
        smaller = {"size_bytes": 8 * MIB}
        refused = ask("PATCH", "/v1/volumes/{name}", smaller, real=one, expect=409)
        assert "the last 8 MiB of it" in refused["message"], refused
        assert ask("GET", "/v1/volumes/{name}", real=one)["size_bytes"] == 16 * MIB
        ask("PATCH", "/v1/volumes/{name}", {**smaller, "shrink": True}, real=one)
        assert ask("GET", "/v1/volumes/{name}", real=one)["size_bytes"] == 8 * MIB
        ask("PATCH", "/v1/volumes/{name}", {"size_bytes": 16 * MIB}, real=one)
        # A path cannot name these.
        for name in (".", ".."):
            ask("POST", "/v1/volumes", {"name": name, "size_bytes": 8 * MIB}, expect=400)
        limited = ask("PUT", "/v1/volumes/{name}/limit", {"iops": 500}, real=one + "/limit")
        assert "500" in json.dumps(limited), limited
        ask("PUT", "/v1/volumes/{name}/read-only", {"read_only": True}, real=one + "/read-only")
        assert "read-only" in ask(
            "PATCH", "/v1/volumes/{name}", {"size_bytes": 8 * MIB}, real=one, expect=400
        )["message"]
        ask("PUT", "/v1/volumes/{name}/read-only", {"read_only": False}, real=one + "/read-only")
        assert ask("GET", "/v1/clients") == []
        other = one + "-renamed"
        plain = lambda path: urllib.parse.unquote(path.rsplit("/")[-1])
        ask("PUT", "/v1/volumes/{name}/name", {"to": plain(other)}, real=one + "/name")
        ask("GET", "/v1/volumes/{name}", real=one, expect=404)
        back = {"to": plain(one), "force": False}
        ask("PUT", "/v1/volumes/{name}/name", back, real=other + "/name")
        snapshot_paths(ask, one)
        ask("PUT", "/v1/volumes/{name}/mode", {"mode": "writethrough"}, real=one + "/mode")
        shown = ask("GET", "/v1/volumes/{name}", real=one)
        assert (shown["size_bytes"], shown["cache_mode"]) == (16 * MIB, "writethrough"), shown
        ask("DELETE", "/v1/volumes/{name}", real=one)
        ask("DELETE", "/v1/volumes/{name}", real=one, expect=404)
        cache_paths(t, ask)
        assert ask("POST", "/v1/scrub", {"rate": 64 * KIB})["state"] == "running"
        states = [
            ask("POST", f"/v1/scrub/{verb}", expect=(200, 400, 409)).get("state")
            for verb in ("pause", "resume", "cancel")
        ]
        print("scrub:", states, ask("GET", "/v1/scrub")["state"])
        device_paths(t, ask)
        assert "classes" in ask(
            "GET",
            "/v1/explain",
            real="/v1/explain?since_seconds=60&volume=vol0&class=read&slower_than_us=5",
        )
        assert len(ask("GET", "/v1/settings")) > 20
        places = {one["key"]: one["value"] for one in ask("GET", "/v1/config")["settings"]}
        assert f"127.0.0.1:{tcp.place}" in places["http.listen"], places
        assert (
            ask("GET", "/v1/settings/{key}", real="/v1/settings/max_lag")["key"] == "cache.max_lag"
        )
        assert (
            ask(
                "PUT", "/v1/settings/{key}", {"value": "9s"}, real="/v1/settings/cache.max_lag"
            )["value"] == "9s"
        )
        assert (
            ask(
                "PUT", "/v1/settings/{key}", {"value": 5000}, real="/v1/settings/pool.dirty_nodes"
            )["value"] == 5000
        )
        assert metrics(api.raw("GET", "/metrics")[2])
        called.add(("GET", "/metrics"))
        assert ask("GET", "/v1/openapi.json") == document
        called.add(("GET", "/v1/events"))
        known = {
            (method.upper(), path)
            for path, methods in document["paths"].items()
            for method in methods
        }
        assert known == called, f"not called: {known - called}; not documented: {called - known}"
    events(unix)
    server.stop()
    server.check(ok=(0,)) if not t.cached else None


def snapshot_paths(ask, volume):
    """The routes of snapshots, of the volume `a ü&b`, which is at `volume`."""
    every, each = "/v1/snapshots", "/v1/snapshots/{name}"
    at = every + "/" + urllib.parse.quote("a ü&b@näxt one", safe="")
    assert ask("GET", every) == []
    two = {"snapshots": ["a ü&b@first", "vol0@first"]}
    taken = ask("POST", every, two)
    assert [one["volume"] for one in taken["snapshots"]] == ["a ü&b", "vol0"], taken
    assert taken["took_ms"] > 0, taken
    assert "already" in ask("POST", every, two, expect=409)["message"]
    for bad in ([], ["vol0"], ["vol0@"], ["none@a"], ["vol0@x", "vol0@y"], ["vol0@a/b"]):
        ask("POST", every, {"snapshots": bad}, expect=404 if bad == ["none@a"] else 400)
    ask("POST", every, {"snapshots": "vol0@a"}, expect=400)
    first = every + "/" + urllib.parse.quote("a ü&b@first", safe="")
    assert ask("GET", each, real=first) == taken["snapshots"][0]
    ask("PUT", each + "/name", {"to": "näxt one"}, real=first + "/name")
    ask("GET", each, real=first, expect=404)
    assert ask("GET", each, real=at)["name"] == "näxt one"
    own = ask("GET", every, real=every + "?volume=" + volume.rsplit("/")[-1])
    assert [one["name"] for one in own] == ["näxt one"], own
    assert [one["volume"] for one in ask("GET", every)] == ["a ü&b", "vol0"]
    ask("GET", every, real=every + "?volume=none", expect=404)
    refused = ask("DELETE", "/v1/volumes/{name}", real=volume, expect=409)["message"]
    assert "forebay snapshot delete 'a ü&b@näxt one'" in refused, refused
    for one in (at, every + "/vol0%40first"):
        ask("DELETE", each, real=one + "?force=true")
        ask("DELETE", each, real=one, expect=404)
    assert ask("GET", every) == []


def cache_paths(t, ask):
    """The cache's routes, and those of jobs."""
    if not t.cached:
        ask("GET", "/v1/cache", expect=404)
        ask("POST", "/v1/cache/flush", real="/v1/cache/flush?wait=true", expect=404)
        ask("POST", "/v1/cache", {"path": str(t.dir / "other.img"), "size_bytes": 64 * MIB})
    assert ask("GET", "/v1/cache")["state"] == "serving"
    number = ask("POST", "/v1/cache/flush", expect=202)["job"]
    deadline = time.monotonic() + 30
    while (job := ask("GET", "/v1/jobs/{id}", real=f"/v1/jobs/{number}"))["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert job["state"] == "done" and job["request"] == "cache-flush" and job["seconds"] >= 0, job
    assert ask("POST", "/v1/gc", real="/v1/gc?wait=true")["outcome"]["passes"] >= 1
    assert number in [job["job"] for job in ask("GET", "/v1/jobs")]
    ask("DELETE", "/v1/jobs/{id}", real=f"/v1/jobs/{number}", expect=409)
    ask("POST", "/v1/cache/cancel", expect=409)
    ask("POST", "/v1/cache", {"path": ""}, expect=400)
    ask("POST", "/v1/cache", {"path": "/nowhere/c.img", "size_bytes": MIB}, expect=409)
    assert ask("DELETE", "/v1/cache", real="/v1/cache?wait=true")["state"] == "done"
    ask("GET", "/v1/cache", expect=404)
    if t.cached:
        place = t.dir / f"again{number}.img"
        ask("POST", "/v1/cache", {"path": str(place), "size_bytes": 64 * MIB})
    else:
        (t.dir / "other.img").unlink(missing_ok=True)


def device_paths(t, ask):
    """Devices come, go and rest."""
    new = t.dir / f"new{time.monotonic_ns()}.img"
    with open(new, "wb") as file:
        file.truncate(GIB)
    ask("POST", "/v1/devices", {"device": str(new)})
    devices = ask("GET", "/v1/devices")
    added = next(d["id"] for d in devices if d["path"] == str(new))
    ask("POST", "/v1/devices/{id}/offline", real=f"/v1/devices/{added}/offline")
    ask("POST", "/v1/devices/{id}/online", real=f"/v1/devices/{added}/online")
    for verb in ("pause", "resume"):
        ask("POST", f"/v1/moves/{verb}")
    ask("PUT", "/v1/pool/copies", {"copies": 2}, expect=(200, 400, 409))
    ask("PUT", "/v1/pool/copies", {"copies": 9}, expect=400)
    deadline = time.monotonic() + 30
    while next(d["state"] for d in ask("GET", "/v1/devices") if d["id"] == added) != "online":
        assert time.monotonic() < deadline, ask("GET", "/v1/devices")
        time.sleep(0.1)
    ask("PUT", "/v1/devices/{id}/size", {"size_bytes": 2 * GIB}, real=f"/v1/devices/{added}/size")
    ask(
        "PUT",
        "/v1/devices/{id}/size",
        {"size_bytes": GIB},
        expect=(400, 409),
        real=f"/v1/devices/{added}/size",
    )
    assert new.stat().st_size == 2 * GIB
    grown = next(d for d in ask("GET", "/v1/devices") if d["id"] == added)
    assert grown["capacity_bytes"] > GIB, grown
    ask("POST", "/v1/devices/rebalance")
    ask("POST", "/v1/moves/cancel", expect=(200, 400, 404, 409))
    ask("DELETE", "/v1/devices/{id}", real=f"/v1/devices/{added}")
    ask("GET", "/v1/moves")
    ask("POST", "/v1/moves/cancel", expect=(200, 400, 404, 409))
    while len(ask("GET", "/v1/devices")) > 2:
        if time.monotonic() > deadline:
            break
        ask("DELETE", "/v1/devices/{id}", real=f"/v1/devices/{added}", expect=(200, 400, 404, 409))
        time.sleep(0.1)
    ask("POST", "/v1/devices/{id}/offline", real="/v1/devices/nowhere/offline", expect=(400, 404))


def events(api):
    """A stream of events, and no more streams than there may be."""
    streams = []
    for _ in range(8):
        connection = api.connection()
        connection.request("GET", "/v1/events?every=1")
        answer = connection.getresponse()
        assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream"
        streams.append((connection, answer))
    api("GET", "/v1/events", expect=503)
    answer = streams[0][1]
    for number in (1, 2):
        kind, data = event(answer, number)
        assert kind == "status" and data["pool"]["state"] == "online"
    for connection, other in streams[1:]:
        other.close()
        connection.close()
    changes(api, answer, 3)
    for connection, answer in streams[:1]:
        answer.close()
        connection.close()


def event(answer, number):
    """The next event of a stream: its kind and its data."""
    assert answer.readline().strip() == f"id: {number}".encode()
    kind = answer.readline().strip().removeprefix(b"event: ").decode()
    data = json.loads(answer.readline().removeprefix(b"data: "))
    assert answer.readline().strip() == b""
    return kind, data


def changes(api, answer, number):
    """What is done to volumes and devices comes as a change, before the status that shows it."""
    device = api("GET", "/v1/devices")[0]
    at = f"/v1/devices/{device['id']}"
    steps = (
        (
            lambda: api("POST", "/v1/volumes", {"name": "seen", "size_bytes": MIB}),
            [("volume", "seen", None, MIB)],
        ),
        (
            lambda: api("PATCH", "/v1/volumes/seen", {"size_bytes": 2 * MIB}),
            [("volume", "seen", MIB, 2 * MIB)],
        ),
        (lambda: api("DELETE", "/v1/volumes/seen"), [("volume", "seen", 2 * MIB, None)]),
        (
            lambda: api("POST", f"{at}/offline"),
            [
                ("pool", "forebay", "online", "degraded"),
                ("device", device["path"], "online", "offline"),
            ],
        ),
        (lambda: api("POST", f"{at}/online"), [("pool", "forebay", "degraded", "online")]),
        (lambda: api("POST", "/v1/gc?wait=true", expect=(200, 404)), [("job",)]),
    )
    begun, seen, state = time.time() - 1, [], "online"
    for act, wanted in steps:
        act()
        deadline = time.monotonic() + 30
        while not all(any(one[: len(want)] == want for one in seen) for want in wanted):
            assert time.monotonic() < deadline, f"{wanted} not in {seen}"
            kind, data = event(answer, number)
            number += 1
            if kind == "change":
                assert set(data) == {"what", "name", "from", "to", "at"}, data
                assert begun < data["at"] <= time.time() + 1, data
                seen.append(tuple(data[field] for field in ("what", "name", "from", "to")))
                if data["what"] == "pool":
                    state = data["to"]
            else:
                assert kind == "status" and data["pool"]["state"] == state, (data, seen)
    problems = [one for one in seen if one[0] == "problem" and one[1] == "device-offline"]
    assert len(problems) == 2 and problems[0][2] is problems[1][3] is None, seen
    devices = [one[3] for one in seen if one[:2] == ("device", device["path"])]
    assert devices[0] == "offline" and devices[-1] == "online", seen


@once
def test_who_may_ask(t):
    """Without the token, by a foreign name, and where there is no token."""
    server, _, tcp = up(t)
    port = tcp.place
    for token in (None, "wrong", tcp.token[:-1], tcp.token + "x"):
        for path in ("/v1/status", "/metrics", "/v1/health", "/nothing"):
            error = Api(port, token)("GET", path, expect=401)
            assert error["kind"] == "unauthorized" and str(t.dir) not in error["message"], error
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example"):
        assert Api(port, tcp.token, host)("GET", "/v1/status", expect=403)["kind"] == "forbidden"
    for host in ("localhost", f"LOCALHOST:{port}", f"[::1]:{port}", "10.0.0.7"):
        Api(port, tcp.token, host)("GET", "/v1/status")
    mode = (
        (t.dir / "data" / "http.token").stat().st_mode & 0o777,
        (t.dir / "data" / "http.sock").stat().st_mode & 0o777,
    )
    assert mode == (0o600, 0o600), mode
    token = tcp.token
    server.restart()
    Api(port, token)("GET", "/v1/status")
    server.stop()

    devices = t.devices(GIB, GIB)
    t.forebay("create", *[word for device in devices for word in ("--device", device)])
    bare = t.serve(devices, "--http-listen", f"127.0.0.1:{port}")
    api = Api(port)
    assert (
        metrics(api.raw("GET", "/metrics")[2]) and str(t.dir) not in api.raw("GET", "/metrics")[2]
    )
    assert set(api("GET", "/v1/health")) == {"state", "pages"}
    for method, path in (
        ("GET", "/v1/status"),
        ("POST", "/v1/volumes"),
        ("GET", "/nothing"),
        ("GET", "/v1/openapi.json"),
    ):
        assert "token" in api(method, path, expect=401)["message"]
    bare.stop()

    secret = t.dir / "token"
    secret.write_text("a-token-of-my-own\n")
    secret.chmod(0o644)
    options = ["--http-listen", f"127.0.0.1:{port}", "--http-token-file", secret]
    words = [word for device in devices for word in ("--device", device)]
    t.refused(
        t.bin, "serve", *words, "--nbd-socket", t.dir / "x.sock", "--socket", t.dir / "y.sock",
        *options, saying=("chmod 600",),
    )
    secret.chmod(0o600)
    own = t.serve(devices, *options)
    Api(port, "a-token-of-my-own")("GET", "/v1/status")
    own.stop()


@once
def test_a_taken_port(t):
    """Where its port is taken `forebay up` goes on without; what was asked for is an error."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 10810))
            taken.listen()
        except OSError:
            pass
        server = t.up(**ROOM)
        server.says("HTTP is not served over TCP")
        Api(t.dir / "data" / "http.sock")("GET", "/v1/status")
        server.stop()
        port = taken.getsockname()[1]
        t.refused(
            t.bin, "up", t.dir / "data", "--http-listen", f"127.0.0.1:{port}",
            saying=("listening on",),
        )
    off = t.up("--http-listen", "none", directory="off", **ROOM)
    assert (
        not (t.dir / "off" / "http.sock").exists() and not (t.dir / "off" / "http.token").exists()
    )
    off.stop()


def test_metrics(t):
    """Metrics say what the status says, in both formats."""
    server, unix, _ = up(t)
    handle = server.connect()
    handle.pwrite(noise("metrics", 4 * MIB), 0)
    for at in range(64):
        handle.pread(64 * KIB, at * 64 * KIB)
    handle.flush()
    time.sleep(0.5)
    before = server.status()
    headers, text = unix.raw("GET", "/metrics")[1:]
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = metrics(text)
    for op in ("read", "write", "flush", "discard", "zero"):
        wanted = before["requests"][op]
        assert value(samples, "forebay_requests_total", op=op) == wanted["count"]
        assert value(samples, "forebay_request_bytes_total", op=op) == wanted["bytes"]
        assert (
            value(samples, "forebay_volume_requests_total", volume="vol0", op=op) == wanted["count"]
        )
    reads = before["requests"]["read"]["count"]
    assert reads >= 64
    for labels in ({"op": "read"}, {"op": "read", "volume": "vol0"}):
        name = (
            "forebay_volume_request_latency_seconds"
            if "volume" in labels
            else "forebay_request_latency_seconds"
        )
        buckets = {
            dict(k[1])["le"]: v
            for k, v in samples.items()
            if k[0] == name + "_bucket" and set(labels.items()) <= set(k[1])
        }
        assert len(buckets) == 20 and buckets["+Inf"] == reads == value(
            samples, name + "_count", **labels
        )
        ordered = [buckets[le] for le in sorted(buckets, key=float)]
        assert ordered == sorted(ordered) and value(samples, name + "_sum", **labels) > 0
    pool = before["pool"]
    assert value(samples, "forebay_pool_capacity_bytes") == pool["capacity_bytes"]
    assert (
        value(samples, "forebay_pool_state", state="online") == 1
        and value(samples, "forebay_pool_state", state="failed") == 0
    )
    for device in pool["devices"]:
        assert value(samples, "forebay_device_state", device=device["id"], state="online") == 1
        assert (
            value(
                samples,
                "forebay_device_info",
                device=device["id"],
                path=device["path"],
                kind=device["queue"]["kind"],
            )
            == 1
        )
    assert (
        ("forebay_cache_capacity_bytes", ()) in samples
        if t.cached
        else not any(k[0].startswith("forebay_cache") for k in samples)
    )
    documented = documented_metrics()
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", k[0])
        if re.sub(r"_(bucket|sum|count)$", "", k[0]) in documented
        else k[0]
        for k in samples
    }
    assert shown <= documented, shown - documented
    if t.cached:
        missing = {
            name
            for name in documented - shown
            if not name.startswith(
                ("forebay_problem", "forebay_slow_requests_by_cause", "forebay_tls_expiry")
            )
        }
        assert not missing, missing
    status, headers, text = unix.raw(
        "GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert (
        status == 200
        and headers["content-type"].startswith("application/openmetrics-text")
        and text.endswith("# EOF\n")
    )
    server.stop()


def test_metrics_by_promtool(t):
    """Prometheus' own tool finds no fault in the metrics."""
    t.need("promtool")
    server, unix, _ = up(t)
    handle = server.connect()
    handle.pwrite(noise("promtool", 4 * MIB), 0)
    handle.pread(64 * KIB, 0)
    handle.flush()
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=unix.raw("GET", "/metrics")[2],
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr
    server.stop()


def documented_metrics():
    from pathlib import Path

    text = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    return set(re.findall(r"^\| `(forebay_[a-z_]+)` ", text, re.M))


def contrib():
    from pathlib import Path

    return Path(__file__).resolve().parents[2] / "contrib"


@once
def test_alerts_and_dashboard(t):
    """Alerts and dashboard name only metrics that are exported."""
    known = documented_metrics()
    known |= {name + suffix for name in known for suffix in ("_bucket", "_sum", "_count")}
    rules = (contrib() / "prometheus" / "forebay.rules.yml").read_text()
    board = json.loads((contrib() / "grafana" / "forebay.json").read_text())
    expressions = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", [])
    ]
    assert len(expressions) > 10
    expressions += [
        variable["query"]["query"]
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    for text in [rules, *expressions]:
        names = set(re.findall(r"\bforebay_[a-z_]+\b", text))
        assert names <= known, names - known
    guide = (contrib().parent / "docs" / "operations.md").read_text()
    named = re.findall(r"\(pages? ([a-z, -]+)\)", rules)
    assert len(named) > 6
    for page in ", ".join(named).split(", "):
        assert f"\n## `{page}`\n" in guide, f"no page {page} in docs/operations.md"


@once
def test_alerts_by_promtool(t):
    """Prometheus' own tool finds no fault in the alerts, and runs them."""
    t.need("promtool")
    t.run("promtool", "check", "rules", contrib() / "prometheus" / "forebay.rules.yml")
    t.run("promtool", "test", "rules", contrib() / "prometheus" / "forebay.rules.test.yml")


@once
def test_bad_requests(t):
    """What is wrong is told with what and where; limits hold."""
    server, unix, tcp = up(t)
    create = "/v1/volumes"
    for body, word in (
        ("{", "line 1"),
        ("[]", "object"),
        ("{}", "name"),
        ('{"name": "a"}', "size_bytes"),
        ('{"name": "a", "size_bytes": "x"}', "size_bytes"),
        ('{"name": "a", "size_bytes": 1, "colour": 1}', "colour"),
        ('{"name": "a", "size_bytes": 4096, "sector_bytes": 1000}', "sector"),
    ):
        status, _, text = unix.raw("POST", create, body, {"Content-Type": "application/json"})
        assert status == 400 and word in json.loads(text)["error"]["message"], (body, text)
    assert unix.raw("POST", create, "{}", {"Content-Type": "text/plain"})[0] == 415
    assert unix.raw("POST", create, "{}")[0] == 415
    assert (
        unix.raw(
            "POST",
            create,
            '{"name":"' + "x" * (65 << 10) + '"}',
            {"Content-Type": "application/json"},
        )[0]
        == 413
    )
    assert unix.raw("GET", "/v1/status", headers={"X": "y" * (32 << 10)})[0] == 431
    assert unix.raw("GET", "/v1/status", headers={f"X{n}": "y" for n in range(100)})[0] == 431
    status, headers, _ = unix.raw("DELETE", "/v1/volumes")
    assert status == 405 and set(headers["allow"].split(",")) >= {"GET", "POST"}, headers
    for path, status in (
        ("/none", 404),
        ("/v1", 404),
        ("/v1/status/", 404),
        ("/v1/volumes/none", 404),
        ("/v1/settings/none", 404),
        ("/v1/problems/none", 404),
        ("/v1/changes?from=-1", 400),
        ("/v1/jobs/7", 404),
        ("/v1/jobs/x", 400),
        ("/v1/events?every=0", 400),
        ("/v1/explain?class=x", 400),
        ("/v1/status?x=1", 400),
        ("/v1/volumes/%FF", 400),
    ):
        unix("GET", path, expect=status)
    assert unix("PUT", "/v1/settings/max_lag", {"value": "1ms"}, expect=400)["message"].startswith(
        "cache.max_lag"
    )
    # A client that is slow with its headers is closed.
    slow = socket.create_connection(("127.0.0.1", tcp.place))
    slow.sendall(b"GET /v1/status HTTP/1.1\r\nHost: loc")
    slow.settimeout(30)
    began = time.monotonic()
    answer = slow.recv(4096)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), answer
    assert 10 < time.monotonic() - began < 25
    tcp("GET", "/v1/status")
    server.stop()


@once
@limit(120)
def test_fuzz(t):
    """Thousands of random requests, whole and broken: never a 500, and the server serves on."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    r = random.Random(seed)
    server, unix, tcp = up(t)
    document = unix("GET", "/v1/openapi.json")
    routes = [
        (m.upper(), p, o)
        for p, ms in document["paths"].items()
        for m, o in ms.items()
        if p != "/v1/events"
    ]
    # What would end the test: they do what they say.
    routes = [
        route
        for route in routes
        if route[:2] not in {("DELETE", "/v1/cache"), ("POST", "/v1/cache")}
    ]

    def word():
        return r.choice([
            "vol0", "", "a", "..", "%00", "%2e%2e%2f", "true", "-1", "18446744073709551616",
            "none", "nan",
            "".join(r.choice(string.ascii_letters + "/%?&=#") for _ in range(r.randrange(30))),
        ])

    def thing(depth=0):
        kind = r.randrange(9 if depth < 3 else 6)
        simple = [None, True, r.randrange(-5, 5), r.randrange(1 << 70), r.random() * 1e300, word()]
        return (
            simple[kind]
            if kind < 6
            else [thing(depth + 1) for _ in range(r.randrange(4))]
            if kind == 6
            else {word(): thing(depth + 1) for _ in range(r.randrange(4))}
        )

    seen = {}
    for number in range(3000):
        method, path, operation = r.choice(routes)
        if r.random() < 0.1:
            method = r.choice(
                ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "X"]
            )
        path = re.sub(
            r"\{.*?\}", lambda _: "".join(c for c in word() if c not in "?#") or "x", path
        )
        if r.random() < 0.3:
            path += "?" + "&".join(
                f"{r.choice(['wait', 'every', 'volume', word()])}={word()}"
                for _ in range(r.randrange(3))
            )
        path = "".join(c for c in path if 32 < ord(c) < 127)
        body, headers = None, {}
        if r.random() < 0.7:
            schema = (
                operation.get("requestBody", {})
                .get("content", {})
                .get("application/json", {})
                .get("schema", {})
                .get("properties", {})
            )
            # Sizes that would be honoured stay small.
            fields = {
                name: r.choice([thing(), word(), r.randrange(1 << 16)])
                for name in schema
                if r.random() < 0.8
            }
            body = r.choice([json.dumps(fields), json.dumps(fields), json.dumps(thing()), word()])
            headers["Content-Type"] = r.choice(
                ["application/json"] * 5 + ["text/plain", "application/json; charset=utf-8"]
            )
        status, _, text = r.choice([unix, tcp]).raw(method, path, body, headers)
        seen[status] = seen.get(status, 0) + 1
        assert status != 500, (method, path, body, text)
        if status >= 400 and method != "HEAD" and text:
            assert set(json.loads(text)["error"]) == {"kind", "message"}, text
    print("whole:", seen)
    seeds = [
        b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        (
            b"POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        ),
        (
            b"POST /v1/gc HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5\r\nhello\r\n0\r\n\r\n"
        ),
    ]
    for _ in range(1000):
        data = bytearray(r.choice(seeds))
        for _ in range(r.randrange(1, 6)):
            at = r.randrange(len(data))
            data[at : at + r.randrange(3)] = bytes(r.randrange(256) for _ in range(r.randrange(3)))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bare:
            bare.settimeout(20)
            bare.connect(str(unix.place))
            try:
                bare.sendall(data)
                bare.shutdown(socket.SHUT_WR)
                answer = bare.recv(65536)
            except (ConnectionError, BrokenPipeError):
                continue
            assert not answer.startswith(b"HTTP/1.1 500"), (bytes(data), answer)
    assert server.alive() and unix("GET", "/v1/status")["pool"]["state"] in ("online", "degraded")
    # It may have been deleted, made smaller, or made read-only, and then it is not deleted.
    unix("PUT", "/v1/volumes/vol0/read-only", {"read_only": False}, expect=(200, 204, 404))
    unix("DELETE", "/v1/volumes/vol0", expect=(204, 404))
    unix("POST", "/v1/volumes", {"name": "vol0", "size_bytes": MIB})
    handle = server.connect()
    handle.pwrite(noise("after", MIB), 0)
    assert handle.pread(MIB, 0) == noise("after", MIB)
    server.stop()
