"""Snapshots: taken under load, read over NBD, kept by a crash, deleted; and their names."""

import errno
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import time

import nbd

from clients.attach import named, need_fuse
from clients.filesystems import Disk
from clients.qemu_tools import each, io
from clients.terminal import Terminal
from harness.background import Background
from harness.case import Skip, cache_only, limit, once
from harness.data import BLOCK, MIB, noise, sample_tree
from harness.schema import check, kept
from harness.server import expect_error

SLOTS = 1200
# Requests are answered by then.
PATIENCE_S = 40


def snapshot(server, *arguments, **more):
    if arguments[0] == "delete" and "--yes" not in arguments:
        arguments = (*arguments, "--yes")
    return server.case.forebay("snapshot", *arguments, "--socket", server.control, **more)


def taken(server, *names):
    """Takes snapshots. What the command says of them."""
    answer = json.loads(snapshot(server, "create", *names, "--json").stdout)
    check(kept(), "POST", "/v1/snapshots", answer)
    print(f"{' '.join(names)}: {answer['took_ms']:.1f} ms")
    assert [f"{s['volume']}@{s['name']}" for s in answer["snapshots"]] == list(names), answer
    return answer


def listed(server, *volume):
    """The names of the snapshots."""
    all_of_them = json.loads(snapshot(server, "list", *volume, "--json").stdout)
    check(kept(), "GET", "/v1/snapshots", all_of_them)
    return [f"{s['volume']}@{s['name']}" for s in all_of_them]


def copied(t, server, export, name="out"):
    """The bytes of an export, as nbdcopy brings them out."""
    out = t.dir / name
    t.run("nbdcopy", "--connections=2", server.uri(export), out)
    data = out.read_bytes()
    out.unlink()
    return data


def used_bytes(server):
    return server.status()["pool"]["used_bytes"]


def wait_until(is_so, what):
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class Chain(Background):
    """Writes one after the other, to two volumes in turn: number n is in block n // 2 of this
    chain, counted around. So what was written before any moment is known from the largest number.
    """

    def __init__(self, server, exports, number):
        super().__init__()
        self.handles = [server.connect(export) for export in exports]
        self.first = number * SLOTS * BLOCK
        self.sent = self.answered = 0

    def work(self):
        while not self.over.is_set():
            n = self.sent = self.sent + 1
            data = struct.pack("<QQ", n, ~n & (1 << 64) - 1) * (BLOCK // 16)
            self.handles[n % 2].pwrite(data, self.first + n // 2 % SLOTS * BLOCK)
            self.answered = n

    def stamps(self, image):
        """The numbers in the image of a volume."""
        found = []
        for slot in range(SLOTS):
            at = self.first + slot * BLOCK
            block = image[at : at + BLOCK]
            n, other = struct.unpack("<QQ", block[:16])
            assert block == block[:16] * (BLOCK // 16), f"block {slot} is torn"
            assert block == bytes(BLOCK) or other == ~n & (1 << 64) - 1, f"block {slot} is wrong"
            found.append(n)
        return found

    def holds(self, images, least, most):
        """Fails if the images are not what the volumes had at one moment, when `least` was answered
        and `most` was sent."""
        both = [self.stamps(image) for image in images]
        last = max(both[0] + both[1])
        assert least <= last <= most, f"{last} is the last write, not {least} to {most}"
        wanted = [[0] * SLOTS, [0] * SLOTS]
        for n in range(max(1, last - 4 * SLOTS), last + 1):
            wanted[n % 2][n // 2 % SLOTS] = n
        for have, want in zip(both, wanted):
            wrong = [(slot, a, b) for slot, (a, b) in enumerate(zip(have, want)) if a != b]
            assert not wrong, f"up to {last}, but (block, is, should be) {wrong[:5]}"
        return last


class Bulk(Background):
    """Overwrites, discards and zeroes what is behind the chains."""

    def __init__(self, server, first, size):
        super().__init__()
        self.handle, self.first, self.size = server.connect(), first, size

    def work(self):
        turn = 0
        while not self.over.is_set():
            turn += 1
            place = self.first + turn * 7 % (self.size // MIB) * MIB
            if turn % 9 == 0:
                self.handle.trim(MIB, place)
            elif turn % 9 == 1:
                self.handle.zero(MIB, place)
            else:
                self.handle.pwrite(noise(turn % 50, MIB), place)


@limit(240)
def test_two_volumes_at_one_moment_under_load(t):
    """Each snapshot has all that was answered before, nothing that was sent later, and of each
    client a beginning of what it did, over both volumes. Old ones go while new ones come. All are
    the same after a kill."""
    at_one_moment(t)


@cache_only
@limit(240)
def test_two_direct_volumes_at_one_moment(t):
    """The same of volumes that do not write back. Where one does and one does not, their snapshots
    could not be of one moment, and there are none."""
    at_one_moment(t, "writethrough", "none")


def at_one_moment(t, *modes):
    server = t.up(volume_size="64M", size="2G")
    server.volume("create", "other", "--size", "32M")
    for volume, mode in zip(("vol0", "other"), modes):
        server.cache("mode", volume, mode)
        if volume == "vol0":
            text = snapshot(server, "create", "vol0@no", "other@no", ok=(1,)).stderr
            assert "not of one moment" in text, text
            assert "forebay cache mode vol0 writeback" in text and listed(server) == [], text
    both = ("vol0", "other")
    chains = [Chain(server, both, number) for number in range(3)]
    bounds, sums = {}, {}
    with chains[0], chains[1], chains[2], Bulk(server, 24 * MIB, 32 * MIB) as bulk:
        for name in ("a", "b", "c", "d", "e", "f"):
            time.sleep(0.4)
            before = [chain.answered for chain in chains]
            taken(server, *(f"{volume}@{name}" for volume in both))
            bounds[name] = list(zip(before, (chain.sent for chain in chains)))
            if name == "d":
                snapshot(server, "delete", "vol0@a..b", "other@b", "other@a")
    for one in (*chains, bulk):
        assert one.error is None, one.error
    left = ["c", "d", "e", "f"]
    assert listed(server) == [f"{volume}@{name}" for volume in sorted(both) for name in left]
    for name in left:
        images = [copied(t, server, f"{volume}@{name}") for volume in both]
        sums[name] = [hashlib.sha256(image).digest() for image in images]
        for chain, (least, most) in zip(chains, bounds[name]):
            print(name, least, chain.holds(images, least, most), most)
    assert bounds["c"][0][0] > 0 and len({one[0] for one in sums.values()}) == len(left)
    server.kill()
    server.start()
    for name in left:
        images = [copied(t, server, f"{volume}@{name}") for volume in both]
        assert sums[name] == [hashlib.sha256(image).digest() for image in images], name
    server.stop()
    server.check()


class Rotation(Background):
    """Takes snapshots of two volumes, and deletes the old ones. `taken` and `deleted` are answered;
    `begun` and `ending` were asked for. All are names without a volume."""

    def __init__(self, server, volumes, turn, old, chains):
        super().__init__()
        self.server, self.volumes, self.turn, self.chains = server, volumes, turn, chains
        self.taken, self.deleted = list(old), set()
        self.begun, self.ending, self.least, self.most = None, None, {}, {}

    def ask(self, *words):
        """Whether the server has answered."""
        command = [self.server.case.bin, "snapshot", *words, "--socket", str(self.server.control)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def work(self):
        for number in itertools.count():
            self.begun = name = f"{self.turn}.{number}"
            self.least[name] = [chain.answered for chain in self.chains]
            if not self.ask("create", *(f"{volume}@{name}" for volume in self.volumes)):
                return
            self.most[name] = [chain.sent for chain in self.chains]
            self.taken.append(name)
            while len(self.taken) > 4:
                self.ending = self.taken[0]
                old = [f"{volume}@{self.ending}" for volume in self.volumes]
                if not self.ask("delete", "--yes", *old):
                    return
                self.deleted.add(self.taken.pop(0))

    def holds(self, found):
        """Fails if these full names are not what a crash may leave."""
        known = {*self.taken, self.begun}
        for name in known | self.deleted:
            there = [f"{volume}@{name}" in found for volume in self.volumes]
            if name in self.deleted:
                assert not any(there), f"{name} was deleted, and is there"
            elif name in self.taken and name != self.ending:
                assert all(there), f"{name} was taken, and is not there"
            elif name != self.ending:
                assert there[0] == there[1], f"{name} is there for one volume only"
        assert {name.split("@")[1] for name in found} <= known, (found, known)


@limit(240)
def test_killed_while_they_are_taken(t):
    """And while they are deleted, under load: what was answered holds, what was not is whole or not
    there, and nothing that is gone takes space."""
    server = t.up(volume_size="64M", size="2G")
    server.volume("create", "other", "--size", "64M")
    both, seed = ("vol0", "other"), time.time_ns()
    rng, sums, names = random.Random(seed), {}, []
    print("seed", seed)
    server.settle()
    empty = used_bytes(server)
    for turn in range(6):
        # Where nothing was written before.
        chains = [Chain(server, both, 2 * turn + number) for number in range(2)]
        rotation = Rotation(server, both, turn, names, chains)
        with chains[0], chains[1], rotation:
            time.sleep(rng.uniform(0.3, 1.5))
            server.kill()
        assert rotation.most and rotation.chains[0].answered > 0, rotation.error
        server.check()
        server.start()
        found = listed(server)
        rotation.holds(found)
        names = [
            name
            for name in dict.fromkeys((*rotation.taken, rotation.begun))
            if all(f"{volume}@{name}" in found for volume in both)
        ]
        half_deleted = [full for full in found if full.split("@")[1] not in names]
        if half_deleted:
            snapshot(server, "delete", *half_deleted)
        sent = [chain.sent for chain in chains]
        for name in names:
            images = [copied(t, server, f"{volume}@{name}") for volume in both]
            if name in rotation.least:
                most = rotation.most.get(name, sent)
                for chain, least, most in zip(chains, rotation.least[name], most):
                    chain.holds(images, least, most)
            now = [hashlib.sha256(image).digest() for image in images]
            assert sums.setdefault(name, now) == now, name
    print(f"{len(sums)} snapshots were looked at, {names} are left")
    snapshot(server, "delete", *listed(server))
    for volume in both:
        server.volume("delete", volume)
    wait_until(lambda: used_bytes(server) < empty + 2 * MIB, "not all of the space comes back")
    server.stop()
    server.check()


@limit(120)
def test_a_volume_as_it_was(t):
    """Whatever is done to the volume: overwritten, zeroed, discarded, made larger. And the same
    after a kill, a restart, and another cache or none."""
    server = t.up(volume_size="40M", size="1G")
    handle = server.connect()
    wanted = bytearray(40 * MIB)
    for at in range(0, 32 * MIB, MIB):
        wanted[at : at + MIB] = noise(("then", at), MIB)
        handle.pwrite(wanted[at : at + MIB], at)
    # A part of a block; and nothing of it is flushed.
    handle.pwrite(b"x" * 512, 33 * MIB + 512)
    wanted[33 * MIB + 512 : 33 * MIB + 1024] = b"x" * 512
    taken(server, "vol0@then")
    t.run("nbdinfo", "--is", "read-only", server.uri("vol0@then"))
    io(t, *each("write -P 7 0 8M", "write -z 8M 4M", "discard 12M 4M", "write -P 9 34603520 512"),
       uri=server.uri())
    server.volume("resize", "vol0", "--size", "80M")
    server.connect().pwrite(noise("late", MIB), 60 * MIB)
    assert copied(t, server, "vol0@then") == wanted
    extents = json.loads(t.run("nbdinfo", "--json", "--map", server.uri("vol0@then")).stdout)
    data = sum(one["length"] for one in extents if one["type"] == 0)
    assert data == 32 * MIB + BLOCK, extents
    taken(server, "vol0@late")
    late = copied(t, server, "vol0")
    server.kill()
    server.start()
    assert copied(t, server, "vol0@then") == wanted
    server.volume("resize", "vol0", "--size", "4M", "--shrink")
    assert copied(t, server, "vol0@late") == late
    if t.cached:
        server.cache("detach")
    assert copied(t, server, "vol0@then") == wanted
    server.restart()
    assert copied(t, server, "vol0@then") == wanted and copied(t, server, "vol0@late") == late
    # The volume is brought back.
    server.volume("resize", "vol0", "--size", "40M")
    t.run("nbdcopy", "--flush", server.uri("vol0@then"), server.uri())
    assert copied(t, server, "vol0") == wanted
    server.stop()
    server.check()


def test_nothing_changes_a_snapshot(t):
    """Whatever a client sends; and it stays while a client has it open, unless by force."""
    server = t.up(volume_size="8M", size="1G")
    server.connect().pwrite(noise("then", MIB), 0)
    taken(server, "vol0@then")
    handle = server.connect("vol0@then", strict=False)
    assert handle.is_read_only()
    for change in (
        lambda: handle.pwrite(bytes(BLOCK), 0),
        lambda: handle.zero(BLOCK, 0),
        lambda: handle.trim(BLOCK, 0),
    ):
        expect_error(errno.EPERM, change)
    t.run("qemu-io", "-f", "raw", "-c", "write 0 4k", server.uri("vol0@then"), ok=(1,))
    assert handle.pread(MIB, 0) == noise("then", MIB)
    server.volume("resize", "vol0@then", "--size", "16M", ok=(1,))
    server.volume("delete", "vol0@then", ok=(1,))
    text = snapshot(server, "delete", "vol0@then", ok=(1,)).stderr
    assert "1 connection has the snapshot vol0@then open" in text, text
    [row] = [one for one in clients(server) if one["export"] == "vol0@then"]
    assert row["read_only"], row
    # Another name: the client goes on, and is known by it.
    snapshot(server, "rename", "vol0@then", "monday")
    assert handle.pread(MIB, 0) == noise("then", MIB)
    assert "vol0@monday" in [one["export"] for one in clients(server)]
    text = server.volume("rename", "vol0", "vm1", ok=(1,)).stderr
    assert "open" in text and "--force" in text, text
    server.volume("rename", "vol0", "vm1", "--force")
    assert "vm1@monday" in [one["export"] for one in clients(server)]
    assert handle.pread(MIB, 0) == noise("then", MIB)
    t.run("nbdinfo", server.uri("vol0@monday"), ok=(1,))
    snapshot(server, "delete", "vm1@monday", "--force")
    expect_error(errno.ESHUTDOWN, lambda: handle.pread(MIB, 0))
    t.run("nbdinfo", server.uri("vm1@monday"), ok=(1,))
    server.stop()
    server.check()


def clients(server):
    text = server.case.forebay("clients", "--json", "--socket", server.control).stdout
    return json.loads(text)


def overwrite(handle, size, seed):
    for at in range(0, size, MIB):
        handle.pwrite(noise((seed, at), MIB), at)
    handle.flush()


@limit(180)
def test_space_comes_back(t):
    """What only a snapshot has is held as long as there is one that has it, and given back in the
    background when it is deleted; also where the server dies meanwhile. A volume goes after its
    snapshots."""
    server = t.up(volume_size="48M", size="1G")
    size, some = 48 * MIB, 8 * MIB
    server.settle()
    empty = used_bytes(server)
    handle = server.connect()
    for name in ("a", "b", "c"):
        overwrite(handle, size, name)
        taken(server, f"vol0@{name}")
    overwrite(handle, size, "now")
    server.settle()
    full = used_bytes(server)
    assert full > empty + 4 * size, (empty, full)
    table = snapshot(server, "list").stdout
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["NAME", "TAKEN", "SIZE", "REFERENCED"], table
    assert [row[0] for row in rows[1:]] == ["vol0@a", "vol0@b", "vol0@c"], table
    assert all(row[3:] == ["UTC", "48", "MiB", "48", "MiB"] for row in rows[1:]), table
    refused = server.volume("delete", "vol0", ok=(1,)).stderr
    assert "has 3 snapshots" in refused, refused
    assert "forebay snapshot delete vol0@a..c" in refused, refused

    snapshot(server, "delete", "vol0@b")
    wait_until(lambda: used_bytes(server) < full - size + some, "nothing of b comes back")
    assert used_bytes(server) > full - size - some, "what others have was given back"
    snapshot(server, "delete", "vol0@a..c", ok=(0,))
    server.kill()
    server.start()
    assert listed(server) == []
    wait_until(lambda: used_bytes(server) < empty + size + some, "it does not come back")
    handle = server.connect()
    for at in range(0, size, MIB):
        assert handle.pread(MIB, at) == noise(("now", at), MIB), at
    handle.shutdown()
    server.volume("delete", "vol0")
    wait_until(lambda: used_bytes(server) < empty + some, "the volume's space does not come back")
    server.stop()
    server.check()


@limit(120)
def test_a_full_pool_takes_a_snapshot(t):
    """One takes no space. What is overwritten then does, which ends in ENOSPC, and the snapshot is
    whole; its deletion makes room again."""
    server = t.up(volume_size="96M", size="320M", directory="full")
    handle = server.connect()
    overwrite(handle, 80 * MIB, "then")
    taken(server, "vol0@then")
    turn = 0
    try:
        for turn in range(20):
            overwrite(handle, 80 * MIB, ("turn", turn))
            taken(server, f"vol0@{turn}")
    except (nbd.Error, AssertionError) as error:
        print(f"full in turn {turn}: {error}")
    assert 0 < turn < 19, "the pool has room for everything"
    image = copied(t, server, "vol0@then")
    assert image[: 80 * MIB] == b"".join(noise(("then", at), MIB) for at in range(0, 80 * MIB, MIB))
    snapshot(server, "delete", *listed(server))
    handle = server.connect()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            overwrite(handle, 80 * MIB, "after")
            break
        except nbd.Error as error:
            assert error.errnum == errno.ENOSPC and time.monotonic() < deadline, error
            time.sleep(0.3)
    server.stop()
    server.check()


@limit(90)
def test_names(t):
    """Odd ones do, and are the same for all that speak of them; others are refused, and say why.
    Of several snapshots all are taken, or none."""
    server = t.up(volume_size="4M", size="1G")
    volumes = ["vol0", "vm 1", "a@b", "a", "ü'\"%2f&?#;x", "..x"]
    for name in volumes[1:]:
        server.volume("create", name, "--size", "4M")
    names = ["monday", "näxt week", "a.b", "100%&?#", "'\"\\$x", "-v", "仮想", "n" * 64]
    for name in names:
        full = [f"{volume}@{name}" for volume in volumes]
        for number, volume in enumerate(volumes):
            handle = server.connect(volume)
            handle.pwrite(noise((volume, name), BLOCK), 0)
            handle.shutdown()
        taken(server, *full)
    assert sorted(listed(server)) == sorted(f"{v}@{n}" for v in volumes for n in names)
    assert listed(server, "a@b") == [f"a@b@{name}" for name in names]
    shown = json.loads(t.run("nbdinfo", "--list", "--json", server.uri("")).stdout)["exports"]
    exports = {one["export-name"]: one["is_read_only"] for one in shown}
    assert exports == {
        **{volume: False for volume in volumes},
        **{f"{v}@{n}": True for v in volumes for n in names},
    }, exports
    for volume in volumes:
        for name in names:
            found = server.connect(f"{volume}@{name}").pread(BLOCK, 0)
            assert found == noise((volume, name), BLOCK), (volume, name)

    before = listed(server)
    for words, status, saying in (
        (("create", "vol0@fresh", "vol0@other"), 1, "named twice"),
        (("create", "vol0@fresh", "vm 1@monday"), 1, "already"),
        (("create", "vol0@fresh", "none@a"), 1, "no volume"),
        (("create", "vol0@a..b"), 1, "two dots"),
        (("create", "vol0@a/b"), 1, "'/'"),
        (("create", "vol0@" + "n" * 65), 1, "64 bytes"),
        (("create", "vol0"), 2, "vm1@monday"),
        (("rename", "vol0@monday", "a.b"), 1, "already"),
        (("rename", "vol0@monday", "x@y"), 1, "'@'"),
        (("rename", "vol0@none", "x"), 1, "forebay snapshot list"),
        (("delete", "vol0@none"), 1, "forebay snapshot list"),
        (("delete", "vol0@a.b..monday"), 1, "taken after"),
        (("delete", "vol0@monday..none"), 1, "forebay snapshot list"),
        (("list", "none"), 1, "forebay volume list"),
    ):
        text = snapshot(server, *words, ok=(status,)).stderr
        assert saying in text, (words, text)
    assert listed(server) == before
    # No name is left behind by what was refused.
    taken(server, "vol0@fresh")
    snapshot(server, "rename", "vol0@fresh", "fresher")
    server.restart()
    assert "vol0@fresher" in listed(server) and "vol0@fresh" not in listed(server)
    snapshot(server, "delete", "vol0@monday..a.b", "vol0@-v", "vol0@näxt week")
    left = [name for name in names if name not in ("monday", "näxt week", "a.b", "-v")]
    assert listed(server, "vol0") == [f"vol0@{name}" for name in (*left, "fresher")]
    assert len(listed(server)) == len(before) - 3
    server.stop()
    server.check()


@once
def test_the_default_export_is_the_only_volume(t):
    """However many snapshots there are of it."""
    server = t.up(volume_size="4M", size="1G")
    server.connect("").pwrite(noise("then", BLOCK), 0)
    taken(server, "vol0@a")
    taken(server, "vol0@b")
    handle = server.connect("")
    assert not handle.is_read_only() and handle.pread(BLOCK, 0) == noise("then", BLOCK)


@once
def test_a_terminal_asks(t):
    """Before anything is lost; and what does not run on one is told to say --yes."""
    server = t.up(volume_size="4M", size="1G")
    for name in ("a", "b", "c", "d"):
        taken(server, f"vol0@{name}")
    at = ("--socket", server.control)
    text = t.forebay("snapshot", "delete", "vol0@a", *at, ok=(2,)).stderr
    assert "--yes" in text and "vol0@a" in text, text
    for words, typed, status in (
        (("vol0@a",), "vol0@b", 1), (("vol0@a",), "vol0@a", 0), (("vol0@b..c",), "3", 1),
        (("vol0@b..c",), "2", 0),
    ):
        before = listed(server)
        one = Terminal(t, t.bin, "snapshot", "delete", *words, *at)
        one.wait_for(lambda seen: "to delete" in seen)
        assert listed(server) == before
        one.type(typed + "\n")
        assert one.ended() == status, one.seen
        assert (listed(server) == before) == (status == 1), one.seen
    assert listed(server) == ["vol0@d"]


def fits(t, root, image, at, tree, *options):
    """Fails if the file system in an image, once its journal is replayed, has not this tree."""
    t.run(*root, "mount", "-o", ",".join(("loop", *options)), image, at)
    try:
        t.run(*root, "diff", "-r", "--no-dereference", tree, at / "first")
    finally:
        t.run(*root, "umount", at)


def of_a_file_system(t, make, check_journal, options):
    """A snapshot of a file system that is mounted, and at work, is one that a power cut left: what
    was synced before is there."""
    server = t.up(volume_size="512M", size="2G")
    disk = Disk(t, server)
    tree = t.dir / "tree"
    sample_tree(tree, 24 * MIB)
    loop = disk.attach()
    t.run(*disk.root, *make, loop)
    mounted = disk.mount()
    t.run(*disk.root, "cp", "-a", tree, mounted / "first")
    t.run("sync", "-f", mounted)
    with FileSystemLoad(disk, tree) as load:
        for name in ("busy", "busier"):
            time.sleep(0.7)
            taken(server, f"vol0@{name}")
    assert load.error is None and load.turns > 0, (load.error, load.turns)
    t.run(*disk.root, "rm", "-rf", mounted / "first")
    disk.unmount()
    disk.detach()
    at = t.dir / "at"
    at.mkdir()
    server.kill()
    server.start()
    for name in ("busy", "busier"):
        image = t.dir / f"{name}.img"
        t.run("nbdcopy", server.uri(f"vol0@{name}"), image)
        if check_journal:
            check_journal(image)
        fits(t, disk.root, image, at, tree, *options)
        if not check_journal:
            t.run(*disk.root, "xfs_repair", "-n", image)
        image.unlink()
    shutil.rmtree(tree)
    server.stop()
    server.check()


class FileSystemLoad(Background):
    """Copies a tree again and again, and takes the copies away."""

    def __init__(self, disk, tree):
        super().__init__()
        self.disk, self.tree, self.turns = disk, tree, 0

    def work(self):
        while not self.over.is_set():
            to = self.disk.mountpoint / f"copy{self.turns % 3}"
            for words in (("rm", "-rf", to), ("cp", "-a", self.tree, to), ("sync", "-f", to)):
                subprocess.run([*self.disk.root, *map(str, words)], check=True)
            self.turns += 1


@limit(200)
def test_ext4(t):
    t.need("mkfs.ext4", "e2fsck")

    def check_journal(image):
        # What a power cut may leave is put right without a question, and nothing else is wrong.
        t.run("e2fsck", "-f", "-p", image, ok=(0, 1))
        t.run("e2fsck", "-f", "-n", image)

    of_a_file_system(t, ["mkfs.ext4", "-q", "-F"], check_journal, ())


@limit(200)
def test_xfs(t):
    t.need("mkfs.xfs", "xfs_repair")
    if "xfs" not in pathlib.Path("/proc/filesystems").read_text():
        subprocess.run([*t.as_root(), "modprobe", "xfs"], capture_output=True, check=False)
        if "xfs" not in pathlib.Path("/proc/filesystems").read_text():
            raise Skip("this machine's kernel has no XFS")
    of_a_file_system(t, ["mkfs.xfs", "-q", "-f"], None, ("nouuid",))


@once
@limit(120)
def test_a_snapshot_is_mounted(t):
    """By its name, and read-only without a word."""
    need_fuse(t)
    t.need("mkfs.ext4")
    server = t.up(volume_size="64M", size="1G")
    at, name = t.dir / "mnt", named(t, "snapshot")
    at.mkdir()
    ask = ("--by", "fuse", "--name", name, "--socket", server.control)
    t.later(lambda: t.forebay("unmount", at, ok=(0, 1)))
    t.forebay("mount", "vol0", at, "--make", "ext4", *ask)
    (at / "file").write_bytes(noise("then", MIB))
    t.run("sync", "-f", at)
    taken(server, "vol0@then")
    (at / "file").write_bytes(noise("now", MIB))
    t.forebay("unmount", at)
    t.forebay("mount", "vol0@then", at, "-o", "noload", *ask)
    assert (at / "file").read_bytes() == noise("then", MIB)
    try:
        (at / "other").write_bytes(b"x")
        raise AssertionError("a snapshot was changed")
    except OSError as error:
        assert error.errno == errno.EROFS, error
    t.forebay("unmount", at)
    assert "forebay snapshot list" in t.forebay(
        "mount", "vol0@none", at, *ask, ok=(1,)
    ).stderr


@limit(60)
def test_a_backup_every_night(t):
    """The script of docs/operations.md, with other paths: what it copies is the volume, nothing is
    left of the snapshot, and where one is left it says so and changes nothing."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/operations.md").read_text()
    [script] = re.findall(r"```sh\n(#!/bin/sh\n.*?@night --yes\n)```", text, re.DOTALL)
    server = t.up(volume_size="4M", size="1G")
    server.volume("create", "vm1", "--size", "32M")
    programs, backups = t.dir / "bin", t.dir / "backup"
    programs.mkdir()
    backups.mkdir()
    (programs / "forebay").symlink_to(pathlib.Path(t.bin).resolve())
    for name, other in (("/run/forebay/nbd.sock", server.socket), ("/backup/", f"{backups}/")):
        assert name in script, script
        script = script.replace(name, str(other))
    environment = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}",
        "FOREBAY_SOCKET": str(server.control),
    }
    wanted = noise("night", 8 * MIB)
    server.connect("vm1").pwrite(wanted, 3 * MIB)
    t.run("sh", "-c", script, env=environment)
    [image] = backups.iterdir()
    assert image.read_bytes() == bytes(3 * MIB) + wanted + bytes(21 * MIB)
    assert image.stat().st_blocks * 512 < 12 * MIB, "holes are holes"
    assert listed(server) == []
    taken(server, "vm1@night")
    image.unlink()
    failed = t.run("sh", "-c", script, env=environment, ok=(1,))
    assert "there is a snapshot vm1@night already" in failed.stderr, failed.stderr
    assert list(backups.iterdir()) == [] and listed(server) == ["vm1@night"]


@once
@limit(60)
def test_a_shell_knows_their_names(t):
    """Where a command wants a snapshot; and the volumes, where it wants a new one."""
    server = t.up(volume_size="4M", size="1G")
    server.volume("create", "vm1", "--size", "4M")
    taken(server, "vol0@monday", "vm1@monday")

    def offered(*words):
        line = ("forebay", *words)
        done = t.run(
            t.bin, "--", *line, "--socket", server.control,
            env={
                **os.environ, "FOREBAY_COMPLETE": "bash", "_CLAP_COMPLETE_INDEX": str(len(words)),
                "_CLAP_IFS": "\n", "_CLAP_COMPLETE_COMP_TYPE": "9", "_CLAP_COMPLETE_SPACE": "true",
            },
        )
        return done.stdout.split("\n")

    assert {"vol0@monday", "vm1@monday"} <= set(offered("snapshot", "delete", ""))
    assert "vm1@monday" in offered("snapshot", "rename", "vm")
    assert {"vol0@", "vm1@"} <= set(offered("snapshot", "create", ""))
    assert {"vol0", "vol0@monday"} <= set(offered("attach", "vol"))
