"""`forebay check --repair`: bad copies are written again from good ones, what has no good copy is
named, and a kill loses nothing."""

import errno
import hashlib
import json
import random
import signal
import subprocess
import time

from harness.case import cache_only, limit, once
from harness.data import BLOCK, KIB, MIB, data_ranges, find_blocks, flip, noise
from harness.server import expect_error


BLOCKS = 2048  # 8 MiB


def fill(server, seed="repair"):
    """Writes blocks that can be found again in the device files; returns them."""
    handle = server.connect()
    written = {number: noise((seed, number), BLOCK) for number in range(BLOCKS)}
    for first in range(0, BLOCKS, 64):
        handle.pwrite(
            b"".join(written[number] for number in range(first, first + 64)), first * BLOCK
        )
    handle.flush()
    handle.shutdown()
    return written


def verify(server, written):
    handle = server.connect()
    for first in range(0, BLOCKS, 64):
        assert handle.pread(64 * BLOCK, first * BLOCK) == b"".join(
            written[number] for number in range(first, first + 64)
        ), first
    handle.shutdown()


def digest(*paths):
    """What files hold. Of space that is reserved and was never written it depends on the kernel's
    cache whether it counts as a hole: it holds zeros, as a hole does."""
    state, zeros = hashlib.sha256(), bytes(BLOCK)
    for path in paths:
        for start, end in data_ranges(path):
            with open(path, "rb") as file:
                file.seek(start)
                for at in range(start, end, BLOCK):
                    block = file.read(BLOCK)
                    if block != zeros:
                        state.update(f"{at} ".encode() + block)
    return state.hexdigest()


def rot(path):
    """Changes every second block of a device that holds anything, of all kinds, and a copy of each
    superblock."""
    rng = random.Random(5)
    for start, end in data_ranges(path):
        for offset in range(max(start, MIB), end, 2 * BLOCK):
            flip(path, offset + rng.randrange(BLOCK), 1 << rng.randrange(8))
    for slot in range(4):
        flip(path, 64 * KIB * (slot + 1) + BLOCK + 99)


def kinds(report):
    return {
        (one["device"].rsplit("/", 1)[-1], one["kind"]): (one["bad"], one["repaired"])
        for one in report["copies"]
    }


@once
@limit(120)
def test_one_device_is_written_again_from_the_other(t):
    """Every kind of copy; a dry run writes nothing; afterwards the other device may go."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    written = fill(server)
    home = server.socket.parent
    t.refused(t.bin, "check", "--repair", home, saying=("forebay scrub",))
    server.stop()
    assert "nothing to repair\nclean" in t.forebay("check", "--repair", home).stdout
    sound = digest(*server.devices)
    t.forebay("check", "--repair", home)
    assert digest(*server.devices) == sound
    rot(server.devices[0])
    rotten = digest(*server.devices)
    t.run(t.bin, "check", "--dry-run", home, ok=(2,))
    text = t.run(t.bin, "check", "--repair", "--dry-run", home, ok=(4,)).stdout
    assert "WOULD BE REPAIRED" in text and "dry run: nothing was written" in text, text
    dry = json.loads(t.run(t.bin, "check", "--repair", "--dry-run", "--json", home, ok=(4,)).stdout)
    assert dry["repair"]["pool"]["dry_run"] and dry["damaged_copies"] > BLOCKS // 4, dry["repair"]
    assert digest(*server.devices) == rotten
    done = json.loads(t.forebay("check", "--repair", "--json", home).stdout)
    assert (done["errors"], done["damaged_copies"], done["problems"]) == (0, 0, []), done
    would, did = kinds(dry["repair"]["pool"]), kinds(done["repair"]["pool"])
    assert {kind for _, kind in did} >= {"superblock", "table", "bitmap", "node", "data"}, did
    assert {device for device, _ in did} == {"pool0.img"}, did
    assert did == {key: (bad, bad) for key, (bad, _) in would.items()}, (would, did)
    assert done["repair"]["pool"]["found"]["damaged_copies"] == dry["damaged_copies"]
    assert "nothing to repair\nclean" in t.forebay("check", "--repair", home).stdout
    other = server.devices.pop()
    other.rename(other.with_suffix(".away"))
    text = t.refused(t.bin, "check", "--repair", home, saying=("give all devices",))
    assert "pool1.img" in text, text
    server.start()
    verify(server, written)
    server.stop()


@once
@limit(90)
def test_a_device_that_was_away(t):
    """A repair is refused with the way out, and that works: served, brought up to date, healed. A
    check says that it was partial."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    fill(server)
    server.stop()
    home, (first, second) = server.socket.parent, server.devices
    second.rename(second.with_suffix(".away"))
    server.start()
    written = fill(server, seed="later")
    server.stop()
    second.with_suffix(".away").rename(second)
    assert "pool1.img stale" in t.forebay("check", home, ok=(5,)).stdout
    assert json.loads(t.forebay("check", "--json", home, ok=(5,)).stdout)["not_checked"]
    for words in ((), ("--dry-run",)):
        text = t.refused(t.bin, "check", "--repair", *words, home, saying=("out of use",))
        assert (
            "Serve the pool with it" in text
            and "scrub start --wait" in text
            and "give all devices" not in text.lower()
        ), text
    at = find_blocks(first, {1: written[1]})[1]
    server.start()
    deadline = time.monotonic() + 60
    while {one["state"] for one in server.status()["pool"]["devices"]} != {"online"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.stop()
    flip(first, at + 5)
    text = t.forebay("check", "--data", home, ok=(4,)).stdout
    assert "to do: forebay check --repair; or serve" in text, text
    text = t.forebay("check", "--repair", "--dry-run", home, ok=(4,)).stdout
    assert "to do: forebay check --repair, without --dry-run" in text, text
    server.start()
    t.forebay("scrub", "start", "--wait", "--socket", server.control)
    server.stop()
    assert "nothing to repair\nclean" in t.forebay("check", "--repair", home).stdout


@once
@limit(90)
def test_what_has_no_good_copy_is_named_and_left_alone(t):
    """The rest is repaired; the block reads as an error until it is written again."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    written = fill(server)
    server.stop()
    home = server.socket.parent
    where = [
        find_blocks(device, {number: written[number] for number in (100, 300)})
        for device in server.devices
    ]
    flip(server.devices[0], where[0][100] + 7)
    flip(server.devices[1], where[1][100] + 8)
    before = digest(*server.devices)
    flip(server.devices[1], where[1][300] + 9)
    heals = "forebay check --repair heals what it can"
    assert heals in t.run(t.bin, "check", "--repair", "--dry-run", home, ok=(3,)).stdout
    text = t.run(t.bin, "check", "--repair", home, ok=(3,)).stdout
    assert (
        'volume 1 ("vol0"), block 100 (bytes 409600 to 413696)' in text
        and "no good copy" in text
        and "checked again: NOT CLEAN: errors: 1, damaged copies: 0" in text
    ), text
    assert digest(*server.devices) == before, "the lost block is as it was, the other one too"
    assert "NOT CLEAN" in t.run(t.bin, "check", "--repair", home, ok=(3,)).stdout
    text = t.run(t.bin, "check", "--repair", "--dry-run", home, ok=(3,)).stdout
    assert heals not in text and "restore what has no good copy" in text, text
    server.start()
    handle = server.connect()
    assert handle.pread(BLOCK, 300 * BLOCK) == written[300]
    expect_error(errno.EIO, lambda: handle.pread(BLOCK, 100 * BLOCK))
    handle.pwrite(written[100], 100 * BLOCK)
    handle.flush()
    handle.shutdown()
    server.stop()
    assert "nothing to repair" in t.forebay("check", "--repair", home).stdout


@once
@limit(180)
def test_killed_again_and_again(t):
    """A repair that is killed at any moment leaves a pool that opens; in the end one gets
    through."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    written = fill(server)
    server.stop()
    home = server.socket.parent
    places = []
    for odd, device in enumerate(server.devices):
        # Blocks of one device and not of the other: each has a good copy.
        where = find_blocks(
            device, {number: written[number] for number in range(BLOCKS) if number % 2 == odd}
        )
        places += [(device, offset + 5) for offset in where.values()] + [
            (device, 64 * KIB * (1 + odd) + 50)
        ]
    for place in places:
        flip(*place)
    began = time.monotonic()
    t.run(t.bin, "check", "--repair", "--dry-run", home, ok=(4,))
    took = time.monotonic() - began
    rng, killed = random.Random(2), 0
    for _ in range(15):
        repair = subprocess.Popen([t.bin, "check", "--repair", home], stdout=subprocess.DEVNULL)
        time.sleep(took * rng.uniform(0.3, 2.5))
        repair.kill()
        killed += repair.wait() == -signal.SIGKILL
        left = json.loads(t.run(t.bin, "check", "--data", "--json", home, ok=(0, 4)).stdout)[
            "damaged_copies"
        ]
        print("left:", left)
        if left == 0:
            for place in places:
                flip(*place)
    assert killed > 3, killed
    t.forebay("check", "--repair", home)
    assert "nothing to repair\nclean" in t.forebay("check", "--repair", home).stdout
    server.start()
    verify(server, written)
    server.stop()


@cache_only
@limit(90)
def test_a_cache_gets_clean_blocks_from_the_pool(t):
    """A clean block of the cache is written again from the pool; a dirty one is named."""
    server = t.up("--cache-size", "256M", "--max-lag", "1h", size="1G", volume_size="64M")
    written = fill(server)
    server.cache("flush")
    handle = server.connect()
    dirty = noise("dirty", BLOCK)
    handle.pwrite(dirty, 40 * MIB)
    handle.flush()
    # The next entry of the journal says that the one before is durable.
    for number in range(3):
        handle.pwrite(noise(("more", number), BLOCK), 50 * MIB + number * MIB)
        handle.flush()
    handle.shutdown()
    server.kill()
    home, cache = server.socket.parent, server.socket.parent / "cache.img"
    where = find_blocks(cache, {**written, "dirty": dirty})
    assert len(where) > 20, len(where)
    clean = [number for number in where if number != "dirty"][3:10]
    for number in clean:
        flip(cache, where[number] + 77)
    sick = digest(cache)
    dry = json.loads(t.run(t.bin, "check", "--repair", "--dry-run", "--json", home, ok=(4,)).stdout)
    assert digest(cache) == sick
    assert kinds(dry["repair"]["cache"]) == {("cache.img", "data"): (len(clean), 0)}, dry["repair"]
    done = json.loads(t.forebay("check", "--repair", "--json", home).stdout)
    assert kinds(done["repair"]["cache"]) == {("cache.img", "data"): (len(clean), len(clean))}, (
        done["repair"]
    )
    assert done["cache_report"]["damaged_copies"] == 0
    assert "nothing to repair\nclean" in t.forebay("check", "--repair", home).stdout
    flip(cache, where["dirty"] + 3)
    flip(cache, where[clean[0]] + 3)
    text = t.run(t.bin, "check", "--repair", home, ok=(3,)).stdout
    assert "dirty, and bad" in text and "errors: 1, damaged copies: 0" in text, text
    flip(cache, where["dirty"] + 3)
    # What the pool's superblock says of the cache stays.
    flip(server.devices[1], 64 * KIB * 2 + 33)
    flip(server.devices[1], 64 * KIB * 4 + BLOCK + 33)
    text = t.forebay("check", "--repair", home).stdout
    assert "superblock" in text and "checked again: clean" in text, text
    server.start()
    verify(server, written)
    handle = server.connect()
    assert handle.pread(BLOCK, 40 * MIB) == dirty
    handle.shutdown()
    server.stop()
