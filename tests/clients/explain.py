"""`forebay explain`: stalls made one by one are named, and nothing is said where nothing is
wrong."""

import json
import os
import signal
import time

import nbd

from harness.case import limit
from harness.data import MIB, noise
from harness.explain import Explain, reads


def test_nothing_wrong(t):
    """Of requests that are not slow there are lengths and no causes; bad questions are refused."""
    server = t.up(size="1G", volume_size="64M")
    explain = Explain(t, server)
    assert explain() == "no request has ended in that time\n"
    handle = server.connect()
    handle.pwrite(noise("fast", MIB), 0)
    for i in range(200):
        handle.pread(4096, i * 4096)
    handle.flush()
    handle.trim(MIB, 0)
    answer = json.loads(explain("--slower-than", "60s", "--json"))
    counts = {of["class"]: of["requests"] for of in answer["classes"]}
    assert counts["read"] == 200 and counts["write"] == 1 and counts["discard"] == 1, counts
    assert counts["flush"] == 1 and answer["slowest"] == [], answer
    for of in answer["classes"]:
        assert (
            of["slow_requests"] == 0 and of["causes"] == [] and "None was slower" in of["verdict"]
        ), of
        assert [p["share"] for p in of["percentiles"]] == [0.5, 0.99, 0.999, 1.0]
    only = json.loads(explain("--volume", "vol0", "--class", "read", "--json"))["classes"]
    assert [of["class"] for of in only] == ["read"]
    command = [t.bin, "explain", "--socket", server.control]
    t.refused(*command, "--volume", "vol7", saying=("no volume", "vol7"))
    t.refused(*command, "--class", "reading", saying=("reading", "read, write, flush"))
    t.refused(*command, "--since", "long", saying=("long",))


@limit(90)
def test_slow_disks(t):
    """Reads of slow disks name the disk; the status has a line of them."""
    server = t.up("--emulate", "hdd", "--cache-size", "0", size="1G", volume_size="256M")
    handle = server.connect()
    for at in range(0, 128 * MIB, MIB):
        handle.pwrite(noise("slow", MIB), at)
    handle.flush()
    reads(handle, [(i * 7919 % 32768) * 4096 for i in range(300)])
    explain = Explain(t, server)
    of = explain.named(
        "30ms", "read", lambda c: c["layer"] == "device" and "pool device" in c["device"], 100
    )
    assert ", beside other requests at " in of["verdict"], of["verdict"]
    assert "limit the volumes that ask for most" in of["verdict"], of["verdict"]
    assert "pool device" in server.status()["stalls"]
    assert "see forebay explain" in t.forebay("status", "--socket", server.control).stdout


def test_a_slow_client(t):
    """A client that does not take its replies is named itself."""
    server = t.up(size="1G", volume_size="64M")
    handle = server.connect()
    handle.pwrite(noise("client", 16 * MIB), 0)
    ended = [0]

    def done(_):
        ended[0] += 1
        return 1

    for i in range(16):
        handle.aio_pread(nbd.Buffer(MIB), i * MIB, completion=done)
    time.sleep(1.5)
    while ended[0] < 16:
        handle.poll(-1)
    Explain(t, server).named("600ms", "read", lambda c: c["layer"] == "client", 8)


@limit(90)
def test_a_stopped_process(t):
    """Requests that are under way while the process is stopped do not blame the disk."""
    server = t.up("--emulate", "hdd", "--cache-size", "0", size="1G", volume_size="256M")
    handle = server.connect()
    for at in range(0, 128 * MIB, MIB):
        handle.pwrite(noise("stopped", MIB), at)
    handle.flush()
    ended = [0]

    def done(_):
        ended[0] += 1
        return 1

    # Few enough that the disk has all of them in far less time than the process is stopped for,
    # also on a machine that is busy.
    for i in range(120):
        handle.aio_pread(nbd.Buffer(4096), (i * 7919 % 32768) * 4096, completion=done)
    time.sleep(0.05)
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(server.pid, signal.SIGCONT)
    while ended[0] < 120:
        handle.poll(-1)
    Explain(t, server).named("2s", "read", lambda c: c["reason"] == "not_running", 20)


@limit(90)
def test_no_memory_for_payloads(t):
    """Requests beyond `max_payload` wait for those before them to end, and name it."""
    (device,) = t.devices(2 << 30)
    t.forebay("create", "--device", device, "--copies", "1")
    config = t.dir / "forebay.toml"
    config.write_text(
        f'devices = [{{ path = "{device}", emulate = "hdd" }}]\n[nbd]\nsocket = "nbd.sock"\n'
        'max_payload = "32M"\n[control]\nsocket = "control.sock"\n'
    )
    server = t.serve([], "--config", config, start=False)
    server.command = [str(t.bin), "serve", "--config", str(config)]
    server.start()
    t.forebay("volume", "create", "vol0", "--size", "1G", "--socket", server.control)
    handles = [server.connect("vol0") for _ in range(32)]
    for at in range(0, 512 * MIB, 4 * MIB):
        handles[0].pwrite(noise("payload", 4 * MIB), at)
    handles[0].flush()
    ended = [0]

    def done(_):
        ended[0] += 1
        return 1

    # One reply of these takes 30 ms of the disk; eight have memory at a time.
    for i in range(128):
        handles[i % 32].aio_pread(nbd.Buffer(4 * MIB), i * 4 * MIB, completion=done)
    while ended[0] < 128:
        for one in handles:
            one.poll(1)
    # The first eight have memory at once, and then wait for this slow client.
    reasons = ("payload_memory", "client_receives")
    of = Explain(t, server).named("600ms", "read", lambda c: c["reason"] in reasons, 30)
    (memory,) = [cause for cause in of["causes"] if cause["reason"] == reasons[0]]
    assert memory["requests"] >= 0.9 * of["slow_requests"], of["causes"]
