"""A pool knows its devices: what a configuration does not name is found, what differs is told, and
nothing of another copy of the pool is taken."""

import json
import signal
import subprocess
import time

from clients.names import Loop
from clients.set import wait_for
from harness.case import limit, once
from harness.data import GIB, MIB, noise

FILE = """{devices}
[nbd]
socket = "nbd.sock"
[control]
socket = "control.sock"
{more}
"""
PAGE = "configuration-differs"


def created(t, *devices, more=()):
    words = [word for device in devices for word in ("--device", device)]
    t.forebay("create", *words, "--name", "tank", *more)


def configured(t, devices, more="", start=True):
    """A server by a configuration file that names these devices, and that file."""
    file = t.dir / "forebay.toml"
    names = f"devices = {json.dumps([str(device) for device in devices])}" if devices else ""
    file.write_text(FILE.format(devices=names, more=more))
    server = t.serve([], start=False)
    server.command = [str(t.bin), "serve", "--config", str(file)]
    return (server.start() if start else server), file


def by_name(t, name, *words, start=True):
    server = t.serve([], "--pool", name, *words, start=False)
    return server.start() if start else server


def refused(t, server, *saying):
    done = t.run(*server.command, ok=(1, 2))
    for word in saying:
        assert str(word) in done.stderr, f"it does not say {word!r}:\n{done.stderr}"
    return done.stderr


def paths(server):
    """The paths of the devices that are in use, and of the cache."""
    status = server.status()
    devices = [one for one in status["pool"]["devices"] if one["state"] == "online"]
    cache = status.get("cache")
    return {one["path"] for one in devices}, cache and cache["path"]


def drift(server):
    """What differs, as status and its problems say it."""
    status = server.status()
    told = [one for one in status["health"] if one["page"] == PAGE]
    assert len(told) == (1 if "drift" in status else 0), status["health"]
    return (status["drift"], told[0]) if told else (None, None)


def written(server, export="vol0", seed="found"):
    with_data = noise(seed, MIB)
    handle = server.connect(export)
    handle.pwrite(with_data, 0)
    handle.flush()
    return with_data


def reads(server, data, export="vol0"):
    assert server.connect(export).pread(len(data), 0) == data


@once
@limit(120)
def test_a_file_needs_no_edit(t):
    """A device is replaced, a cache comes and goes, all move to another directory: the same file
    serves the same pool, and status says how the two differ."""
    first, second = t.devices(GIB, GIB)
    created(t, first, second)
    server, file = configured(t, (first, second))
    server.volume("create", "vol0", "--size", "64M")
    data = written(server)
    assert drift(server) == (None, None)

    elsewhere = t.dir / "elsewhere"
    elsewhere.mkdir()
    third, cache = elsewhere / "third.img", elsewhere / "fast.img"
    with open(third, "wb") as made:
        made.truncate(GIB)
    control = ("--socket", server.control)
    told = t.forebay("device", "replace", second, third, "--wait", *control).stdout
    assert "finds the devices by itself" in told and str(third) in told, told
    differs, problem = drift(server)
    assert differs["unnamed_devices"] == [str(third)], differs
    assert differs["needless_devices"] == [str(second)], differs
    assert str(file) in problem["todo"] and "nothing has to be done" in problem["todo"], problem
    server.stop()
    doctor = json.loads(t.forebay("doctor", "--config", file, "--json", ok=(0, 3)).stdout)
    config = [one["found"] for one in doctor if one["check"] == "config"]
    assert len(config) == 2 and str(second) in config[0] and str(third) in config[1], doctor
    assert not [one for one in doctor if one["check"] == "start" and one["level"] == "problem"]
    server.start()
    assert paths(server) == ({str(first), str(third)}, None)
    assert "is left alone" in server.says(str(second), str(third))
    reads(server, data)

    told = server.cache("attach", cache, "--size", "64M").stdout
    assert "the next start finds it by itself" in told, told
    assert drift(server)[0]["unnamed_cache"] == str(cache)
    data = written(server, seed="cached")
    # The cache alone has it.
    server.kill()
    server.start()
    assert paths(server) == ({str(first), str(third)}, str(cache))
    reads(server, data)
    server.stop()

    moved = t.dir / "moved"
    elsewhere.rename(moved)
    refused(t, server, cache, "where it was last", "--cache")
    with file.open("a") as more:
        more.write(f'[pool]\nsearch = ["{moved}"]\n')
    # Of a cache nothing tells that it is no older copy: it is named once.
    told = refused(t, server, cache, "where it was last", "--cache")
    assert f"{moved / cache.name} says that it is the cache" in told, told
    server.command += ["--cache", str(moved / cache.name)]
    server.start()
    found = ({str(first), str(moved / third.name)}, str(moved / cache.name))
    assert paths(server) == found
    reads(server, data)
    server.stop()
    del server.command[-2:]
    server.start()
    assert paths(server) == found

    server.cache("detach")
    assert drift(server)[0].get("unnamed_cache") is None
    server.restart()
    assert paths(server)[1] is None
    reads(server, data)

    # What the file says is compared when it is read again.
    file.write_text(file.read_text().replace(str(second), str(moved / third.name)))
    server.process.send_signal(1)
    wait_for(lambda: drift(server) == (None, None), 10)


@once
@limit(90)
def test_a_cache_that_was_taken_out_is_not_made_again(t):
    """Whatever path and size the file says."""
    devices, cache = t.devices(GIB), t.dir / "fast.img"
    created(t, *devices)
    server, _ = configured(t, devices, f'[cache]\npath = "{cache}"\nsize = "64M"')
    assert paths(server)[1] == str(cache) and drift(server) == (None, None)
    server.cache("detach")
    differs, problem = drift(server)
    assert differs["needless_cache"] == str(cache) and "has none" in problem["what"], problem
    server.restart()
    assert paths(server)[1] is None
    server.says("forebay cache detach took it out")
    assert drift(server)[0] == differs
    server.cache("attach", cache, "--size", "64M")
    assert drift(server) == (None, None)
    server.restart()
    assert paths(server)[1] == str(cache)


@once
@limit(90)
def test_a_pool_is_found_by_its_name(t):
    """By its name or uuid, wherever its files are; a name that two pools have is not enough."""
    there = t.dir / "there"
    there.mkdir()
    devices = [there / "a.img", there / "b.img"]
    created(t, *devices, more=("--size", "1G"))
    search = ("--search", there)
    server = by_name(t, "tank", *search)
    server.volume("create", "vol0", "--size", "64M")
    data = written(server)
    assert paths(server) == ({str(device) for device in devices}, None)
    assert drift(server) == (None, None)
    uuid = server.status()["pool"]["uuid"]
    server.stop()
    by_uuid = by_name(t, uuid, *search)
    reads(by_uuid, data)
    by_uuid.stop()

    refused(t, by_name(t, "tank", start=False), "no pool", "--search")
    refused(t, by_name(t, "other", *search, start=False), "no pool", "other", "tank")
    other = t.dir / "other"
    other.mkdir()
    created(t, other / "a.img", more=("--size", "1G"))
    both = by_name(t, "tank", *search, "--search", other, start=False)
    refused(t, both, "several pools", uuid, "uuid")
    one = by_name(t, uuid, *search, "--search", other)
    reads(one, data)
    one.stop()

    # A device that is missing keeps its place.
    away = t.dir / "away.img"
    devices[1].rename(away)
    server = by_name(t, "tank", *search)
    told = json.dumps(server.status()["health"])
    assert f"was last at {devices[1]}" in told, told
    away.rename(devices[1])
    t.forebay("device", "online", devices[1], "--socket", server.control)
    wait_for(lambda: len(paths(server)[0]) == 2, 30)


@once
@limit(90)
def test_a_copy_takes_nothing_of_the_original(t):
    """A copy of one half does not find the other half, nor the cache: both are the original's."""
    devices, cache = t.devices(GIB, GIB), t.dir / "fast.img"
    created(t, *devices)
    server, _ = configured(t, devices)
    server.volume("create", "vol0", "--size", "64M")
    data = written(server)
    server.stop()

    copies = t.dir / "copies"
    copies.mkdir()
    copy = copies / "a.img"
    subprocess.run(["cp", "--sparse=always", devices[0], copy], check=True)
    server, _ = configured(t, (copy,))
    assert paths(server) == ({str(copy)}, None)
    server.says(f"{copy} is a copy of {devices[0]}")
    server.stop()
    # Served once it is at home. The other half still belongs to the original.
    before = [device.read_bytes() for device in devices]
    for start in (
        lambda: configured(t, (copy,), f'[pool]\nsearch = ["{t.dir}"]')[0],
        lambda: t.serve([copy]),
    ):
        server = start()
        assert paths(server) == ({str(copy)}, None)
        server.stop()
    assert [device.read_bytes() for device in devices] == before
    server = by_name(t, "tank", "--search", copies, "--search", t.dir)
    assert paths(server) == ({str(device) for device in devices}, None)
    reads(server, data)
    server.stop()
    copy.unlink()

    server, _ = configured(t, devices)
    reads(server, data)
    server.cache("attach", cache, "--size", "64M")
    written(server, seed="cached")
    server.stop()
    before = cache.read_bytes()
    for device in devices:
        subprocess.run(["cp", "--sparse=always", device, copies / device.name], check=True)
    server, _ = configured(t, [copies / device.name for device in devices], start=False)
    refused(t, server, "cache", "is not named")
    assert cache.read_bytes() == before


@once
@limit(90)
def test_older_copies_are_not_taken(t):
    """A backup beside a device that is away, a backup of a pool whose file system is not there yet,
    a copy of a cache that is lost: none is served, and none is written to."""
    devices, cache = t.devices(GIB, GIB), t.dir / "fast.img"
    created(t, *devices)
    server, _ = configured(t, devices)
    server.volume("create", "vol0", "--size", "64M")
    written(server)
    server.stop()
    backup = t.dir / "backup.img"
    subprocess.run(["cp", "--sparse=always", devices[1], backup], check=True)
    server.start()
    data = written(server, seed="newer")
    server.stop()
    away = t.dir / "away"
    away.mkdir()
    devices[1].rename(away / "b.img")
    before = backup.read_bytes()
    server.start()
    assert paths(server) == ({str(devices[0])}, None)
    server.says("not taken", str(backup), "may be an older copy")
    reads(server, data)
    server.stop()
    assert backup.read_bytes() == before
    (away / "b.img").rename(devices[1])
    server.start()
    wait_for(lambda: len(paths(server)[0]) == 2, 30)

    server.cache("attach", cache, "--size", "64M")
    written(server, seed="in the cache")
    copy = t.dir / "copy.img"
    subprocess.run(["cp", "--sparse=always", cache, copy], check=True)
    data = written(server, seed="after the copy")
    server.kill()
    cache.rename(away / "fast.img")
    told = refused(t, server, str(cache), "where it was last")
    assert f"{copy} says that it is the cache" in told, told
    (away / "fast.img").rename(cache)
    server.start()
    reads(server, data)
    server.stop()

    # By its name alone: one file that is elsewhere is no start.
    for device in devices:
        device.rename(away / device.name)
    server = by_name(t, "tank", "--search", t.dir, start=False)
    refused(t, server, "cannot be told", str(backup), "--device")
    assert backup.read_bytes() == before


@once
@limit(60)
def test_a_place_that_does_not_answer(t):
    """It holds up a start for a while, and not for good."""
    t.need("nbdfuse")
    devices = t.devices(GIB, GIB)
    created(t, *devices)
    server, _ = configured(t, devices)
    server.stop()
    point = t.dir / "dead"
    point.mkdir()
    fuse = subprocess.Popen(["nbdfuse", str(point), "--command", "nbdkit", "-s", "memory", "64M"])
    t.later(lambda: (fuse.send_signal(signal.SIGCONT), t.run("umount", point), fuse.wait()))
    wait_for(lambda: (point / "nbd").exists(), 20)
    fuse.send_signal(signal.SIGSTOP)
    server, _ = configured(t, devices, start=False)
    server.command += ["--search", str(point)]
    devices[1].rename(t.dir / "b.hidden")
    began = time.monotonic()
    server.start()
    assert time.monotonic() - began < 50
    assert str(devices[0]) in paths(server)[0]
    fuse.send_signal(signal.SIGCONT)


@once
@limit(90)
def test_what_names_nothing_of_the_pool(t):
    """Every device that the file names was replaced: the next start would not find the pool, which
    is said while there is time."""
    (first,) = t.devices(GIB)
    created(t, first)
    server, file = configured(t, (first,))
    other = t.dir / "other.img"
    with open(other, "wb") as made:
        made.truncate(GIB)
    control = ("--socket", server.control)
    told = t.forebay("device", "replace", first, other, "--wait", *control).stdout
    assert "would not find" in told and 'name = "tank" in [pool]' in told, told
    differs, problem = drift(server)
    assert not differs["is_found"] and "would not find" in problem["todo"], problem
    with file.open("a") as more:
        more.write(f'[pool]\nname = "tank"\nsearch = ["{t.dir}"]\n')
    server.restart()
    assert paths(server)[0] == {str(other)}


@once
@limit(90)
def test_names_that_moved_by_one(t):
    """The cache is named as a device and a device as the cache: each is taken for what it is."""
    devices, cache = t.devices(GIB, GIB), t.dir / "fast.img"
    created(t, *devices)
    server, _ = configured(t, devices, f'[cache]\npath = "{cache}"\nsize = "64M"')
    server.volume("create", "vol0", "--size", "64M")
    data = written(server)
    server.stop()
    server, _ = configured(t, (devices[0], cache), f'[cache]\npath = "{devices[1]}"')
    assert paths(server) == ({str(device) for device in devices}, str(cache))
    reads(server, data)
    differs, _ = drift(server)
    assert differs["unnamed_devices"] == [str(devices[1])], differs
    assert differs["needless_cache"] == str(devices[1]), differs


@once
@limit(90)
def test_the_command_line_is_taken_at_its_word(t):
    """With --device nothing else is taken; what the next start has to name is told before."""
    devices, cache = t.devices(GIB, GIB), t.dir / "fast.img"
    created(t, *devices)
    server = t.serve(devices)
    told = server.cache("attach", cache, "--size", "64M").stdout
    assert f"--cache {cache}" in told, told
    differs, problem = drift(server)
    assert differs["unnamed_cache"] == str(cache) and not differs["is_found"], differs
    assert f"--cache {cache}" in problem["todo"], problem
    server.stop()
    refused(t, server, "is at", f"--cache {cache}")
    server.cache_file = lambda: cache
    server.command += ["--cache", str(cache)]
    server.start()
    assert drift(server) == (None, None)
    server.cache("detach")
    server.stop()
    alone = t.serve(devices[:1])
    assert paths(alone)[0] == {str(devices[0])}
    assert f"was last at {devices[1]}" in json.dumps(alone.status()["health"])


@once
@limit(120)
def test_disks_that_get_other_names(t):
    """Loop devices with other names after a start of the machine."""
    files = t.devices(256 * MIB, 256 * MIB, 256 * MIB)
    first, second, third = loops = [Loop(t, file) for file in files]
    created(t, first.node, second.node)
    server, _ = configured(t, (first.node, second.node))
    server.volume("create", "vol0", "--size", "64M")
    data = written(server)
    t.forebay("device", "replace", second.node, third.node, "--wait", "--socket", server.control)
    server.stop()
    for loop in loops:
        loop.detach()
    # Their order is turned round.
    again = [Loop(t, file) for file in reversed(files)]
    server.start()
    nodes = {loop.node for loop in again}
    assert len(paths(server)[0]) == 2 and paths(server)[0] < nodes
    reads(server, data)
    server.stop()
