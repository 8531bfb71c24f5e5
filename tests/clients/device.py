"""`forebay device` and `forebay pool`: devices come and go under a client's load and over kills,
and nothing that was written is lost."""

import json
import re
import time

from harness.background import Background
from harness.case import limit
from harness.data import BLOCK, MIB, noise

PIECE = 64 * BLOCK


class Load(Background):
    """Writes pieces again and again until it is stopped; remembers what each holds."""

    def __init__(self, server, pieces=128):
        super().__init__()
        self.server, self.pieces = server, pieces
        self.held = {}

    def work(self):
        handle, n = self.server.connect("vol0"), 0
        while not self.over.is_set():
            piece = n * 7919 % self.pieces
            data = noise(("device", n), PIECE)
            handle.pwrite(data, piece * PIECE)
            self.held[piece] = data
            n += 1
            if n % 8 == 0:
                handle.flush()
        handle.flush()

    def verify(self, server):
        assert self.error is None, self.error
        handle = server.connect("vol0")
        for piece, data in self.held.items():
            assert handle.pread(PIECE, piece * PIECE) == data, f"piece {piece}"


def pool(t, devices, copies):
    """A server of a new pool on these devices, with a volume."""
    words = [word for device in devices for word in ("--device", device)]
    t.forebay("create", *words, "--copies", str(copies))
    server = t.serve(devices)
    t.forebay("volume", "create", "vol0", "--size", "256M", "--socket", server.control)
    return server


def device(t, server, *words, **more):
    return t.forebay("device", *words, "--socket", server.control, **more).stdout


def ended(t, server, seconds=60):
    """Waits until nothing is left to move."""
    deadline = time.monotonic() + seconds
    while (listed := json.loads(device(t, server, "list", "--json")))["moves"]["state"] != "none":
        assert time.monotonic() < deadline, listed
        time.sleep(0.05)
    return listed


def served(t, server, devices):
    """A server of the same pool on other devices; it has the same cache, if there is one."""
    other = t.serve(devices, start=False)
    if "--cache" in server.command:
        at = server.command.index("--cache")
        there = other.command.index("--cache")
        other.command[there + 1] = server.command[at + 1]
    return other.start()


@limit(90)
def test_replace_under_load(t):
    """The new device has everything, also without the other one; the old one belongs to no pool any
    more."""
    one, two, three = t.devices(512 * MIB, 512 * MIB, 600 * MIB)
    server = pool(t, [one, two], 2)
    with Load(server) as load:
        time.sleep(0.5)
        said = device(t, server, "replace", two, three, "--wait")
        assert (
            "nothing left to move" in said
            and f"{three} is in the pool; {two} is out of the pool, and can be used" in said
        ), said
        assert (
            "2 devices, 2 copies" in said
            and "when the server is started next, name the devices as they are now: "
            f"--device {one} --device {three}" in said
        ), said
        time.sleep(0.2)
    states = {d["path"]: d["state"] for d in ended(t, server)["devices"]}
    assert states == {str(one): "online", str(three): "online"}, states
    end = server.status()["pool"]["moves"]["ended"]
    assert end["outcome"] == "done" and end["copied_bytes"] > 0, end
    assert abs(end["ended_at"] - time.time()) < 60, end
    load.verify(server)
    assert "is no device of this pool" in t.refused(
        t.bin, "device", "remove", two, "--socket", server.control
    )
    server.stop()
    t.refused(
        *served(t, server, [one, three]).command[:2], "--device", two, "--nbd-socket", t.dir / "x",
        "--socket", t.dir / "y", saying=("not a device",),
    )
    t.servers[-1].stop()
    last = served(t, server, [three])
    load.verify(last)
    last.stop()


@limit(90)
def test_a_missing_device_is_replaced(t):
    """A pool that lost a device becomes whole again."""
    one, two, three = t.devices(512 * MIB, 512 * MIB, 512 * MIB)
    server = pool(t, [one, two], 2)
    with Load(server) as load:
        time.sleep(0.5)
    server.stop()
    two.rename(two.with_suffix(".gone"))
    server = served(t, server, [one])
    (missing,) = [
        d["id"]
        for d in json.loads(device(t, server, "list", "--json"))["devices"]
        if d["state"] == "missing"
    ]
    assert "missing" in device(t, server, "list")
    device(t, server, "replace", missing, three, "--wait")
    ended(t, server)
    assert server.status()["pool"]["state"] == "online"
    load.verify(server)
    server.stop()
    last = served(t, server, [three])
    load.verify(last)
    last.stop()


@limit(90)
def test_add_copies_remove(t):
    """A pool of one copy gets a second one, and lets its first device go."""
    one, two, three = t.devices(512 * MIB, 512 * MIB, 512 * MIB)
    server = pool(t, [one], 1)
    with Load(server) as load:
        t.refused(t.bin, "pool", "set", "copies=2", "--socket", server.control, saying=("devices",))
        device(t, server, "add", two)
        assert (
            "nothing"
            in t.forebay("pool", "set", "copies=2", "--wait", "--socket", server.control).stdout
        )
        t.refused(
            t.bin, "device", "remove", one, "--socket", server.control, saying=("add a device",)
        )
        # What the copies took is no progress of this command.
        said = device(t, server, "add", three)
        assert "nothing to move" not in said, said
        assert "is in the pool" in said and "forebay device rebalance" in said, said
        said = device(t, server, "remove", one, "--wait")
        assert "nothing to move" not in said and "is out of the pool" in said, said
        ended(t, server)
    load.verify(server)
    assert server.status()["pool"]["copies"] == 2
    server.stop()
    last = served(t, server, [two, three])
    load.verify(last)
    last.stop()


@limit(90)
def test_waiting_for_moves_that_rest_or_wait_ends(t):
    """It fails and says what to type, where moves are paused, and where they wait for a device; a
    cancel ends them."""
    one, two, three = t.devices(512 * MIB, 512 * MIB, 512 * MIB)
    server = pool(t, [one, two, three], 2)
    handle = server.connect("vol0")
    for at in range(0, 128 * MIB, MIB):
        handle.pwrite(noise(("base", at), MIB), at)
    handle.flush()

    device(t, server, "pause")
    text = t.refused(t.bin, "device", "remove", three, "--wait", "--socket", server.control)
    assert "paused" in text and "forebay device resume" in text, text
    device(t, server, "offline", two)
    text = t.refused(t.bin, "device", "resume", "--wait", "--socket", server.control)
    assert text.count("waiting for a device with room") == 1 and "forebay device cancel" in text, (
        text
    )
    (line,) = [p for p in server.status()["health"] if p["page"] == "moves-wait"]
    assert f"let {three} stay (forebay device cancel)" in line["todo"], line
    device(t, server, "cancel")
    deadline = time.monotonic() + 15
    while (end := server.status()["pool"]["moves"]["ended"])["outcome"] != "cancelled":
        assert time.monotonic() < deadline, end
        time.sleep(0.1)
    device(t, server, "online", two, "--wait")
    assert {d["state"] for d in ended(t, server)["devices"]} == {"online"}


@limit(120)
def test_kills_in_the_middle(t):
    """A replacement goes on after each kill, and ends."""
    one, two, three = t.devices(512 * MIB, 512 * MIB, 512 * MIB)
    server = pool(t, [one, two], 2)
    with Load(server, pieces=512) as load:
        time.sleep(2)
    load.over.clear()
    device(t, server, "pause")
    device(t, server, "replace", two, three)
    assert (
        "paused" in device(t, server, "list")
        and "moves" in t.forebay("status", "--socket", server.control).stdout
    )
    for number in range(6):
        if number:
            device(t, server, "resume")
            time.sleep(0.02 * number)
        server.kill()
        # A device that had left by then is none of the pool any more.
        left = [one, three] if "device removed" in server.log_text() else [one, two, three]
        server = served(t, server, left)
        load.verify(server)
        if all(
            d["path"] != str(two)
            for d in json.loads(device(t, server, "list", "--json"))["devices"]
        ):
            break
    ended(t, server)
    load.verify(server)
    server.stop()
    last = served(t, server, [three])
    load.verify(last)
    last.stop()


@limit(60)
def test_what_is_refused(t):
    """Devices that hold something, that are too small, or that are there already; nothing is
    changed."""
    one, two, small = t.devices(512 * MIB, 512 * MIB, 2 * MIB)
    server = pool(t, [one], 1)
    with open(two, "r+b") as file:
        file.seek(0x438)
        file.write(b"\x53\xef")
    command = (t.bin, "device", "add")
    more = ("--socket", server.control)
    assert "--force" in t.refused(*command, two, *more, saying=("ext",))
    t.refused(*command, small, *more, saying=("too small",))
    t.refused(*command, one, *more, saying=("in use", "already"))
    t.refused(*command, t.dir / "none", *more, saying=("none",))
    t.refused(*command, f"{two},emulate=hdd", *more, saying=("emulate",))
    assert [d["path"] for d in server.status()["pool"]["devices"]] == [str(one)]
    t.forebay("device", "cancel", *more, ok=range(1, 101))
    device(t, server, "add", two, "--force")
    assert len(server.status()["pool"]["devices"]) == 2


@limit(90)
def test_offline_and_online_under_load(t):
    """A device that was away gets what changed, and no more; then the pool can do without the other
    one."""
    one, two = t.devices(512 * MIB, 512 * MIB)
    server = pool(t, [one, two], 2)
    handle = server.connect("vol0")
    for at in range(0, 192 * MIB, MIB):
        handle.pwrite(noise(("base", at), MIB), at + 32 * MIB)
    handle.flush()
    with Load(server) as load:
        time.sleep(0.3)
        device(t, server, "offline", two)
        t.refused(
            t.bin, "device", "offline", one, "--socket", server.control,
            saying=("cannot do without",),
        )
        time.sleep(0.3)
        assert "offline" in device(t, server, "list")
        said = device(t, server, "online", two, "--wait")
        assert "nothing left to move" in said, said
        listed = ended(t, server)
    assert {d["state"] for d in listed["devices"]} == {"online"}, listed
    t.refused(t.bin, "device", "online", two, "--socket", server.control, saying=("in use",))
    device(t, server, "offline", one)
    load.verify(server)
    assert handle.pread(MIB, 100 * MIB) == noise(("base", 68 * MIB), MIB)
    server.kill()
    last = served(t, server, [two])
    load.verify(last)
    last.stop()


@limit(90)
def test_a_missing_device_comes_back(t):
    """By its path while the pool is served, and by itself at the next start, over kills."""
    one, two = t.devices(512 * MIB, 512 * MIB)
    server = pool(t, [one, two], 2)
    with Load(server) as load:
        time.sleep(0.5)
    server.stop()
    server = served(t, server, [one])
    with Load(server) as load:
        time.sleep(0.3)
        assert [problem["page"] for problem in server.status()["health"]] == ["device-missing"], (
            server.status()["health"]
        )
        assert (
            f"is missing (it was last at {two})\n  to do: plug it in"
            in t.forebay("status", "--socket", server.control).stdout
        )
        # With a cache, the pool may have got nothing yet that the device lacks.
        assert re.search("nothing (left )?to move", device(t, server, "online", two, "--wait"))
        # The command line names one device alone.
        pages = [problem["page"] for problem in server.status()["health"]]
        assert pages == ["configuration-differs"], pages
        time.sleep(0.1)
    ended(t, server)
    assert server.status()["pool"]["state"] == "online"
    server.kill()
    server = served(t, server, [two])
    with Load(server) as load:
        time.sleep(0.3)
    server.kill()
    server = served(t, server, [one, two])
    deadline = time.monotonic() + 30
    while server.status()["pool"]["state"] != "online":
        assert time.monotonic() < deadline, server.status()["pool"]
        time.sleep(0.05)
    load.verify(server)
    server.stop()
    last = served(t, server, [one])
    load.verify(last)
    last.stop()


@limit(90)
def test_a_spare_takes_the_place_of_a_missing_device(t):
    """By itself after its time, by hand at once; then devices grow and are filled to the same
    share."""
    one, two, three, four = t.devices(512 * MIB, 512 * MIB, 512 * MIB, 768 * MIB)
    server = pool(t, [one, two], 2)
    device(t, server, "add", "--spare", three)
    t.refused(
        t.bin, "device", "add", "--spare", three, "--socket", server.control,
        saying=("in use", "already"),
    )
    with Load(server) as load:
        time.sleep(0.5)
    server.stop()
    two.rename(two.with_suffix(".gone"))
    server = served(t, server, [one, three])
    (problem,) = server.status()["health"]
    assert (
        problem["page"] == "device-missing"
        and f"the spare {three} takes its place in" in problem["what"]
    ), problem
    (missing,) = [d["id"] for d in server.status()["pool"]["devices"] if d["state"] == "missing"]
    t.forebay("set", "pool.spare_after", "1s", "--socket", server.control)
    with Load(server) as more:
        deadline = time.monotonic() + 30
        # How fast it gets everything beside a load is another matter.
        while "spare" in {d["state"] for d in server.status()["pool"]["devices"]}:
            assert time.monotonic() < deadline, server.status()["pool"]
            time.sleep(0.05)
    listed = ended(t, server)
    assert {d["path"]: d["state"] for d in listed["devices"]} == {
        str(one): "online",
        str(three): "online",
    }, listed
    status = server.status()
    assert status["pool"]["state"] == "online"
    (problem,) = [one for one in status["health"] if one["page"] == "spare-taken"]
    assert (
        f"the spare {three} took the place of {missing} on 20" in problem["what"]
        and "; no spare is left" in problem["what"]
        and "forebay device add --spare" in problem["todo"]
    ), problem
    assert problem["what"] in " ".join(
        t.forebay("status", "--socket", server.control).stdout.split()
    )
    more.verify(server)
    device(t, server, "add", "--spare", four)
    spares = server.status()["pool"]["spares"]
    assert (spares["left"], spares["taken_total"], spares["taken"]) == (1, 1, []), spares
    assert "spare-taken" not in [one["page"] for one in server.status()["health"]]
    assert "nothing left to move" in device(t, server, "replace", one, four, "--wait")
    assert {d["path"] for d in ended(t, server)["devices"]} == {str(three), str(four)}
    device(t, server, "add", one, "--force")
    assert "1 GiB" in device(t, server, "resize", four, "1G")
    t.refused(
        t.bin, "device", "resize", four, "512M", "--socket", server.control, saying=("shrink",)
    )
    assert "nothing left to move" in device(t, server, "rebalance", "--wait")
    used = {
        d["path"]: d["allocated_bytes"] / d["capacity_bytes"] for d in ended(t, server)["devices"]
    }
    group = 16 * MIB / (400 * MIB)
    assert max(used.values()) - min(used.values()) <= 2 * group, used
    more.verify(server)
    server.kill()
    last = served(t, server, [one, three, four])
    more.verify(last)
    last.stop()
    last.command = server.command
    last.devices = [one, three, four]
    assert last.check(data=False).stdout.endswith("\nclean\n")


@limit(120)
def test_up_finds_its_devices_again(t):
    """Devices that were added, replaced or removed under `forebay up` are those of the next start,
    after a kill too, and where the directory is called otherwise."""
    server = t.up(size="512M", volume_size="256M")
    first, second = server.devices
    (third, fourth), outside = t.devices(512 * MIB, 512 * MIB), t.dir / "outside.img"
    inside = first.parent / "pool2.img"
    third.rename(inside)
    fourth.rename(outside)
    with Load(server) as load:
        time.sleep(0.3)
        said = device(t, server, "replace", second, inside, "--wait")
        assert (
            f"{second} is out of the pool, and can be used for something else (2 devices, 2 copies)"
            in said
            and "started next" not in said
        ), said
    second.unlink()
    server.kill()
    server.start()
    assert states(server) == {str(first): "online", str(inside): "online"}
    load.verify(server)
    # A device that is not there at a start is one of the pool all the same.
    device(t, server, "replace", first, outside, "--wait")
    server.stop()
    outside.rename(first)
    server.start()
    assert sorted(states(server).values()) == ["missing", "online"]
    load.verify(server)
    server.stop()
    first.rename(outside)
    moved = first.parent.rename(t.dir / "moved")
    server = t.up(directory="moved")
    load.verify(server)
    deadline = time.monotonic() + 30
    while states(server) != {str(moved / inside.name): "online", str(outside): "online"}:
        assert time.monotonic() < deadline, states(server)
        time.sleep(0.05)
    device(t, server, "add", moved / "pool1.img", ok=(1,))
    server.stop()
    t.forebay(
        "check",
        moved,
        "--data",
        *(["--cache", moved / "cache.img"] if (moved / "cache.img").exists() else []),
    )


def states(server):
    return {d["path"]: d["state"] for d in server.status()["pool"]["devices"]}


@limit(60)
def test_what_a_crash_leaves_on_the_list(t):
    """A device that was listed and has not joined, or has left, is no reason not to start; one of
    the pool that is empty is told."""
    server = t.up(size="512M", volume_size="64M")
    listed = json.loads((server.devices[0].parent / "devices.json").read_text())
    assert [one["path"] for one in listed] == ["pool0.img", "pool1.img"], listed
    server.stop()
    (empty,) = t.devices(512 * MIB)
    listed.append({"id": "00000000-0000-4000-8000-000000000001", "path": str(empty)})
    listed.append({"id": "00000000-0000-4000-8000-000000000002", "path": str(t.dir / "gone.img")})
    (server.devices[0].parent / "devices.json").write_text(json.dumps(listed))
    server.start()
    assert server.status()["pool"]["state"] == "online" and len(states(server)) == 2
    assert len(json.loads((server.devices[0].parent / "devices.json").read_text())) == 2
    server.stop()
    (server.devices[0].parent / "devices.json").write_text("[")
    t.refused(*server.command, saying=("devices.json",))


@limit(60)
def test_a_device_is_replaced_at_its_own_path(t):
    """A disk that is out of use is taken out, and an empty one is put in at its place."""
    server = t.up(size="512M", volume_size="256M")
    first, second = server.devices
    with Load(server) as load:
        time.sleep(0.3)
    replace = (t.bin, "device", "replace", second, second, "--socket", server.control)
    t.refused(*replace, "--force", saying=("is in use already",))
    device(t, server, "offline", second)
    before = {d["path"]: d["id"] for d in server.status()["pool"]["devices"]}
    t.refused(*replace, "--force", saying=(f"forebay device online {second}",))
    assert states(server)[str(second)] == "offline"
    second.rename(t.dir / "old.img")
    with open(second, "wb") as file:
        file.truncate(512 * MIB)
    said = device(t, server, "replace", second.name, second, "--wait")
    assert f"{second} is in the pool; {before[str(second)]} is out of the pool" in said, said
    assert states(server) == {str(first): "online", str(second): "online"}
    after = {d["path"]: d["id"] for d in server.status()["pool"]["devices"]}
    assert before[str(first)] == after[str(first)] and before[str(second)] != after[str(second)]
    assert server.status()["health"] == []
    # The name is the new one's.
    device(t, server, "offline", second)
    device(t, server, "online", second, "--wait")
    server.kill()
    server.start()
    load.verify(server)
    assert states(server) == {str(first): "online", str(second): "online"}
    listed = json.loads((first.parent / "devices.json").read_text())
    assert {one["path"]: one["id"] for one in listed} == {
        path.name: after[str(path)] for path in (first, second)
    }, listed
    server.stop()
    server.check()


@limit(60)
def test_a_pool_is_as_large_as_it_can_become(t):
    """It was made for 64 block groups: what gives no more room is told."""
    one, two = t.devices(256 * MIB, 256 * MIB)
    server = pool(t, [one], 1)
    assert server.status()["pool"]["capacity_limit_bytes"] == 1024 * MIB
    assert "was made for" not in device(t, server, "resize", one, "512M")
    said = device(t, server, "resize", one, "3G")
    assert "3 GiB, of which the pool can use 1 GiB" in said, said
    assert "the pool was made for 1 GiB at most" in said, said
    said = device(t, server, "add", two)
    assert "is in the pool" in said and "the pool was made for 1 GiB at most" in said, said
    server.stop()
    server.devices = [one, two]
    server.check()


@limit(60)
def test_any_name_of_a_device(t):
    """A device is what its file is: another spelling, a link, the last part of its path, its id."""
    one, two, three = t.devices(512 * MIB, 512 * MIB, 512 * MIB)
    server = pool(t, [one, two], 2)
    link = t.dir / "link"
    link.symlink_to(two)
    (id_of_two,) = [d["id"] for d in server.status()["pool"]["devices"] if d["path"] == str(two)]
    for name in (two, f"{t.dir}/./{two.name}", link, two.name, id_of_two):
        assert f"{two} is out of use" in device(t, server, "offline", name)
        assert f"{two} is in use (2 devices, 2 copies)" in device(
            t, server, "online", name, "--wait"
        )
        assert (
            two.name
            in t.forebay(
                "scrub", "start", "--device", name, "--wait", "--socket", server.control
            ).stdout
        )
    assert str(two) in device(t, server, "resize", link, "600M")
    t.refused(
        t.bin, "device", "add", link, "--force", "--socket", server.control,
        saying=("in use already",),
    )
    said = device(t, server, "add", three)
    assert f"{three} is in the pool (3 devices, 2 copies)" in said, said
    said = device(t, server, "remove", link, "--wait")
    assert (
        f"{two} is out of the pool, and can be used for something else (2 devices, 2 copies)"
        in said
    ), said


@limit(60)
def test_the_configuration_file_that_is_to_be_changed(t):
    """What has to be said at the next start is told: the line of the file, and nothing once it is
    as it was."""
    one, two, three = t.devices(512 * MIB, 512 * MIB, 512 * MIB)
    config = t.dir / "forebay.toml"
    t.forebay("create", "--device", one, "--device", two)
    server = t.serve([one, two], start=False)
    config.write_text(f'devices = ["{one}", "{two}"]\n')
    server.command = [
        word for word in server.command if word not in ("--device", str(one), str(two))
    ] + ["--config", str(config)]
    server.start()
    said = device(t, server, "add", three)
    assert (
        f'the next start finds the devices by itself; to make {config} agree with the pool, say '
        f'there: devices = ["{one}", "{two}", "{three}"]' in said
    ), said
    said = device(t, server, "remove", three, "--wait")
    assert "next start" not in said, said
    assert "next start" not in device(t, server, "offline", two) + device(
        t, server, "online", two, "--wait"
    )
    said = device(t, server, "replace", two, three, "--force")
    assert str(three) in said and "out of the pool" in said, said
