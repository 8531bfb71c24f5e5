"""Long work of the cache: how far it is, and how it is given up, by the API and by Ctrl-C."""

import signal
import subprocess
import time

from clients.http import up

from harness.case import limit, once
from harness.data import MIB, noise

DIRTY = 256 * MIB


def slow(t):
    """A server whose disks are slow enough for writing back to take seconds, with much to write
    back: it, and its API."""
    server, api, _ = up(
        t, "--emulate", "hdd", "--cache-size", "1G", "--max-lag", "1h",
        room={"size": "2G", "volume_size": "512M"},
    )
    fill(server, api)
    return server, api


def fill(server, api):
    handle = server.connect()
    for at in range(0, DIRTY, 4 * MIB):
        handle.pwrite(noise(f"jobs {at % 7}", 4 * MIB), at)
    handle.flush()
    handle.shutdown()
    assert api("GET", "/v1/cache")["dirty_bytes"] > DIRTY / 2


def ended(api, number, state):
    """Waits for the end of a job, which is this one. All that was seen of it."""
    deadline, seen = time.monotonic() + 60, []
    while not seen or seen[-1]["state"] == "running":
        assert time.monotonic() < deadline, seen[-1]
        seen.append(api("GET", f"/v1/jobs/{number}"))
        time.sleep(0.02)
    assert seen[-1]["state"] == state, seen[-1]
    return seen


@once
@limit(180)
def test_progress_and_cancel(t):
    """A job says how far it is. A flush, a detach and a change of a mode are given up; what has
    ended is not."""
    server, api = slow(t)
    number = api("POST", "/v1/cache/flush", expect=202)["job"]
    assert api("DELETE", f"/v1/jobs/{number}")["state"] == "cancelled"
    gone = api("DELETE", f"/v1/jobs/{number}", expect=409)
    assert "ended already" in gone["message"], gone
    api("DELETE", "/v1/jobs/99", expect=404)
    # The rest of it, and all of that is told.
    fill(server, api)
    seen = ended(api, api("POST", "/v1/cache/flush", expect=202)["job"], "done")
    done = [one["progress"]["done_bytes"] for one in seen]
    last = seen[-1]["progress"]
    assert done == sorted(done), done
    assert any(0 < one < last["total_bytes"] for one in done), done
    assert last["done_bytes"] == last["total_bytes"] >= DIRTY / 2, last

    fill(server, api)
    number = api("DELETE", "/v1/cache", expect=202)["job"]
    assert api("DELETE", f"/v1/jobs/{number}")["state"] == "cancelled"
    assert api("GET", "/v1/cache")["state"] == "serving"
    # The one that was given up may still have to notice.
    deadline = time.monotonic() + 60
    while "has not begun" not in str(api("POST", "/v1/cache/cancel", {}, expect=(204, 409))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    fill(server, api)
    wanted = api("GET", "/v1/volumes/vol0")["cache_mode"]
    number = api(
        "PUT", "/v1/volumes/vol0/mode?wait=false", {"mode": "writethrough"}, expect=202
    )["job"]
    assert api("GET", f"/v1/jobs/{number}")["progress"]["total_bytes"] > 0
    # Nobody has asked for the mode of another volume, or for a detach.
    assert "has not begun" in api("POST", "/v1/cache/cancel", {}, expect=409)["message"]
    give_up(api, number)
    ended(api, number, "cancelled")
    assert api("GET", "/v1/volumes/vol0")["cache_mode"] == wanted == "writeback"
    assert api("GET", "/v1/cache")["state"] == "serving"
    # What was cancelled is done when it is asked for again.
    done = api("PUT", "/v1/volumes/vol0/mode", {"mode": "writethrough"})
    assert done["state"] == "done", done
    assert api("GET", "/v1/volumes/vol0")["cache_mode"] == "writethrough"
    assert api("POST", "/v1/gc?wait=true")["progress"] is None
    ended(api, api("DELETE", "/v1/cache", expect=202)["job"], "done")
    api("GET", "/v1/cache", expect=404)
    server.stop()


def give_up(api, number):
    """A change waits for the one before to notice that it was given up."""
    deadline = time.monotonic() + 60
    while api("DELETE", f"/v1/jobs/{number}", expect=(200, 409)).get("kind") == "refused":
        assert time.monotonic() < deadline
        time.sleep(0.02)


@once
@limit(120)
def test_interrupted(t):
    """Ctrl-C ends the wait for a flush, a detach and a change of a mode, and says that they go on
    and what ends them."""
    server, api = slow(t)
    at = ("--socket", server.control)
    for words, how in (
        (("flush",), "forebay cache status shows how far it is"),
        (("mode", "vol0", "writearound"), "forebay cache cancel VOLUME ends it"),
        (("detach",), "forebay cache cancel ends it"),
    ):
        command = [str(word) for word in (t.bin, "cache", *words, *at)]
        waits = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.4)
        waits.send_signal(signal.SIGINT)
        out, said = waits.communicate(timeout=30)
        assert waits.returncode == -signal.SIGINT, (words, waits.returncode, out, said)
        assert "it goes on without this command; " in said and how in said, said
        if words[0] == "mode":
            t.forebay("cache", "cancel", "vol0", *at)
        if words[0] != "detach":
            fill(server, api)
    assert "the cache stays" in t.forebay("cache", "cancel", *at).stdout
    assert api("GET", "/v1/cache")["state"] == "serving"
    server.stop()
