"""An ext4 in use, while the devices under its pool are taken away, replaced, damaged and brought
into the states of docs/operations.md.

Each state is asked for by `forebay status`, with its page. What the page says to type is typed. At
the end the file system has every byte, e2fsck finds nothing, and so does `forebay check`.
"""

import os
import pathlib
import time

from clients.filesystems import Disk
from harness.background import Background
from harness.case import cache_only, limit, pool_only
from harness.data import BLOCK, MIB, data_ranges, find_blocks, flip, noise, sample_tree
from harness.fuse import FuseFile

FILES = 64


class Load(Background):
    """Files that are written, synced, read and deleted again and again, until it is stopped."""

    def __init__(self, at):
        super().__init__()
        self.at = pathlib.Path(at)
        self.at.mkdir()
        self.held = {}
        self.rounds = 0

    def work(self):
        while not self.over.is_set():
            name = f"file{self.rounds * 7919 % FILES}"
            data = noise(("ext4", self.rounds), (1 + self.rounds % 40) * 10_007)
            with open(self.at / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self.held[name] = data
            if self.rounds % 5 == 0 and len(self.held) > FILES // 2:
                gone = next(iter(self.held))
                (self.at / gone).unlink()
                del self.held[gone]
            self.rounds += 1

    def goes_on(self):
        """Waits for some more files."""
        was, deadline = self.rounds, time.monotonic() + 30
        while self.rounds < was + 5:
            assert self.error is None, self.error
            assert time.monotonic() < deadline, "nothing is written any more"
            time.sleep(0.02)

    def verify(self):
        assert self.error is None, self.error
        assert sorted(path.name for path in self.at.iterdir()) == sorted(self.held)
        for name, data in self.held.items():
            assert (self.at / name).read_bytes() == data, name


class Faulty(FuseFile):
    """A file of a device that fails when told so, with this error."""

    def __init__(self, t, name, size, error="EIO"):
        self.reads, self.writes, self.rate = (
            t.dir / f"{name}.{what}" for what in ("reads", "writes", "rate")
        )
        settings = [f"error={error}", f"rate-file={self.rate}"]
        for call, when in (
            ("pread", self.reads),
            ("pwrite", self.writes),
            ("trim", self.writes),
            ("zero", self.writes),
        ):
            settings += [f"error-{call}-rate=100%", f"error-{call}-file={when}"]
        super().__init__(t, name, size, ["error", "rate"], settings)

    def fail(self, *what):
        for path in what:
            path.touch()

    def is_well(self):
        for path in (self.reads, self.writes, self.rate):
            path.unlink(missing_ok=True)


class Used:
    """A server of a pool, and an ext4 on its volume that is mounted and holds a tree."""

    def __init__(self, t, devices, *arguments, cache=None):
        t.need("mkfs.ext4", "e2fsck")
        self.t = t
        t.forebay(
            "create",
            *(word for device in devices for word in ("--device", device)),
            "--copies",
            str(len(devices)),
        )
        self.server = t.serve(devices, *arguments, *(("--cache", cache) if cache else ()))
        if cache:
            self("cache", "attach", cache)
        self.server.volume("create", "vol0", "--size", "512M")
        self.disk = Disk(t, self.server)
        self.loop = self.disk.attach()
        # Without the default the kernel would go on making the file system when nothing else is
        # written.
        t.run(
            *self.disk.root, "mkfs.ext4", "-q", "-F", "-E",
            "lazy_itable_init=0,lazy_journal_init=0", self.loop,
        )
        self.at = self.disk.mount()
        self.tree = t.dir / "tree"
        sample_tree(self.tree, 24 * MIB)
        t.run(*self.disk.root, "cp", "-a", self.tree, self.at / "tree")
        t.run("sync", "-f", self.at)

    def __call__(self, *words, **more):
        return self.t.forebay(*words, "--socket", self.server.control, **more).stdout

    def pages(self):
        return [problem["page"] for problem in self.server.status()["health"]]

    def comes_to(self, *pages, seconds=60):
        """Waits until these are the states that are told, and no device is on its way into use."""
        deadline = time.monotonic() + seconds
        while True:
            status = self.server.status()
            found = [problem["page"] for problem in status["health"]]
            # The devices that the command line names are those of the beginning.
            found = [page for page in found if page != "configuration-differs"]
            joining = any(device["state"] == "joining" for device in status["pool"]["devices"])
            if found == list(pages) and not joining:
                return
            assert time.monotonic() < deadline, (found, self("status"))
            time.sleep(0.1)

    def drop_caches(self):
        """What is read from now on is read from the volume."""
        self.t.run("sync", "-f", self.at)
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")

    def compare(self):
        self.drop_caches()
        self.t.run(*self.disk.root, "diff", "-r", "--no-dereference", self.tree, self.at / "tree")

    def ends_well(self, load):
        load.verify()
        self.compare()
        load.verify()
        self.disk.unmount()
        self.t.run(*self.disk.root, "e2fsck", "-fn", self.loop)
        self.disk.detach()
        self.server.stop()
        self.server.check()


@pool_only
@limit(180)
def test_devices_go_and_come(t):
    """Offline and back, deleted and replaced, scrubbed with rot of one copy, grown, and a device
    added and removed."""
    first, second, third, fourth = t.devices(*[1024 * MIB] * 4)
    used = Used(t, [first, second], "--commit-interval", "200ms")
    with Load(used.at / "load") as load:
        load.goes_on()
        assert used.pages() == []
        used("device", "offline", second)
        used.comes_to("device-offline")
        load.goes_on()
        used("device", "online", second, "--wait")
        used.comes_to()
        # Its file is deleted; the server has it open still. Another one takes its place.
        second.unlink()
        load.goes_on()
        used("device", "replace", second, third, "--wait")
        load.goes_on()
        used.comes_to()
        # Much of the other one rots, and is healed while files are written.
        hit = rot(first)
        used("scrub", "start", "--wait")
        status = used.server.status()["pool"]["scrub"]
        assert status["lost"] == 0 and status["healed"] > hit // 4, (hit, status)
        used.comes_to("device-rots")
        used("scrub", "start", "--wait")
        used.comes_to()
        # One more device, then one less.
        used("device", "add", fourth)
        used("device", "remove", first, "--wait")
        load.goes_on()
        used.comes_to()
        first.unlink()
    used.server.devices = [third, fourth]
    used.ends_well(load)


def rot(device):
    """Flips a bit in every 16th block of a device file; returns in how many."""
    hit = 0
    for start, end in data_ranges(device):
        for offset in range(max(start, MIB), end, 16 * BLOCK):
            flip(device, offset + 100)
            hit += 1
    return hit


@pool_only
@limit(240)
def test_a_device_that_fails(t):
    """Failed and back by itself, failing again and again, slow, unreadable: all under a file system
    that notices nothing."""
    (good,) = t.devices(1024 * MIB)
    bad = Faulty(t, "bad", 1024 * MIB)
    used = Used(t, [good, bad.path], "--commit-interval", "200ms")
    with Load(used.at / "load") as load:
        load.goes_on()
        assert used.pages() == []
        for time_ in range(3):
            bad.fail(bad.writes)
            used.comes_to("device-failed")
            load.goes_on()
            bad.is_well()
            if time_ == 0:
                # By itself, after ten seconds.
                used.comes_to()
            else:
                used("device", "online", bad.path, "--wait")
                used.comes_to()
        bad.fail(bad.writes)
        used.comes_to("device-flapping")
        load.goes_on()
        bad.is_well()
        used("device", "online", bad.path, "--wait")
        used.comes_to()
        # What it has cannot be read: the other copy is.
        bad.fail(bad.reads)
        used("scrub", "start")
        deadline = time.monotonic() + 60
        while not set(used.pages()) & {"device-errs", "device-failed", "device-flapping"}:
            assert time.monotonic() < deadline, used("status")
            time.sleep(0.1)
        used.compare()
        load.goes_on()
        bad.is_well()
    used.disk.unmount()
    used.t.run(*used.disk.root, "e2fsck", "-fn", used.loop)
    used.disk.detach()


@pool_only
@limit(120)
def test_a_block_without_a_copy(t):
    """A file of which one block is bad in both copies gives an error there and nowhere else, until
    it is written again."""
    devices = t.devices(1024 * MIB, 1024 * MIB)
    used = Used(t, devices, "--commit-interval", "200ms")
    lost, data = used.at / "lost", noise("lost", 64 * BLOCK)
    lost.write_bytes(data)
    used.drop_caches()
    time.sleep(1)
    with Load(used.at / "load") as load:
        for device in devices:
            where = find_blocks(device, {7: data[7 * BLOCK : 8 * BLOCK]})
            flip(device, where[7] + 9)
        used("scrub", "start", "--wait", ok=(3,))
        used.comes_to("blocks-lost")
        used.drop_caches()
        with open(lost, "rb") as file:
            try:
                file.read()
                raise AssertionError("a block without a good copy was read")
            except OSError as error:
                assert error.errno == 5, error
        load.goes_on()
        lost.write_bytes(data)
        used("scrub", "status")
        used.drop_caches()
        assert lost.read_bytes() == data
        # ext4 may write it elsewhere; then the old place is lost until it is trimmed.
        used.t.run(*used.disk.root, "fstrim", used.at, ok=(0, 1))
        used("scrub", "start", "--wait", ok=(0, 3))
        used.comes_to()
    used.ends_well(load)


@cache_only
@limit(180)
def test_a_pool_and_a_cache_that_fail(t):
    """Write-back fails while the pool does, and goes on; a cache with nothing in it fails, is not
    missed, and is attached again."""
    device, cache = Faulty(t, "pool", 1024 * MIB), Faulty(t, "cache", 256 * MIB)
    used = Used(t, [device.path], "--max-lag", "1s", cache=cache.path)
    with Load(used.at / "load") as load:
        load.goes_on()
        device.fail(device.writes)
        deadline = time.monotonic() + 60
        while "writeback-fails" not in used.pages():
            assert time.monotonic() < deadline, used("status")
            time.sleep(0.1)
        load.goes_on()
        device.is_well()
        used.comes_to()
        load.goes_on()
    used.t.run("sync", "-f", used.at)
    used("cache", "flush")
    cache.fail(cache.reads, cache.writes)
    used.t.run(*used.disk.root, "cp", "-a", used.tree, used.at / "second", ok=range(256))
    used.comes_to("cache-aside")
    load.verify()
    used.compare()
    with Load(used.at / "more") as more:
        more.goes_on()
    cache.is_well()
    # The pool has everything.
    used("cache", "flush")
    used.t.refused(
        used.t.bin, "cache", "attach", cache.path, "--socket", used.server.control,
        saying=("cache detach takes",),
    )
    used("cache", "detach", ok=(0, 1, 2))
    used("cache", "attach", cache.path)
    used.comes_to()
    more.verify()
    used.ends_well(load)


@cache_only
@limit(180)
def test_a_cache_that_fails_with_writes_in_it(t):
    """The file system gets errors. When the device is well and the server was restarted, all that
    was synced is there."""
    (device,), cache = t.devices(1024 * MIB), Faulty(t, "cache", 256 * MIB)
    used = Used(t, [device], cache=cache.path)
    load = Load(used.at / "load")
    with load:
        load.goes_on()
        load.goes_on()
        cache.fail(cache.writes)
        deadline = time.monotonic() + 60
        while load.error is None:
            assert time.monotonic() < deadline, used("status")
            time.sleep(0.1)
    assert load.error.errno in (5, 30), load.error
    used.comes_to("cache-failed")
    used.disk.unmount()
    used.disk.detach(dead=True)
    cache.is_well()
    used.server.kill()
    used.server.start()
    used.comes_to()
    used.loop = used.disk.attach()
    # The journal is played back, and nothing else is wrong.
    used.t.run(*used.disk.root, "e2fsck", "-fp", used.loop, ok=(0, 1))
    used.t.run(*used.disk.root, "e2fsck", "-fn", used.loop)
    used.disk.mount()
    # What was being written when it failed may be there or not.
    for name, data in load.held.items():
        found = used.at / "load" / name
        if name != f"file{load.rounds * 7919 % FILES}" and found.exists():
            assert found.read_bytes() == data, name
    there = {path.name for path in (used.at / "load").iterdir()}
    assert len(there) >= len(load.held) - 2, (sorted(there), sorted(load.held))
    used.compare()
    used.disk.unmount()
    used.disk.detach()
    used.server.stop()
    used.server.check()
