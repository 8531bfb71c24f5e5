"""Golden images of released versions in the real binary: opened, checked, shown and read; and what
a newer version wrote is refused by name."""

import json
import pathlib
import re
import struct

from clients.set import wait_for

from harness.case import once
from harness.data import BLOCK, KIB, MIB, noise
from harness.server import Server

IMAGES = pathlib.Path(__file__).resolve().parents[2] / "crates" / "volume" / "tests" / "golden"
# The device that was away when the power failed is not among them: disk2.
THERE = ("disk0", "disk1", "spare")


def lay_out(t, version):
    """An image as sparse files: by name."""
    made = {}
    for path in sorted((IMAGES / version).glob("*.txt")):
        lines = path.read_text().splitlines()
        if not lines[0].startswith("size "):
            continue
        made[path.stem] = device = t.dir / f"{path.stem}.img"
        with open(device, "wb") as file:
            file.truncate(int(lines[0].removeprefix("size ")))
            for line in lines[1:]:
                offset, *words = line.split(" ")
                file.seek(int(offset))
                block = b"".join(
                    bytes.fromhex(w[:2]) * int(w[3:]) if w[2:3] == "*" else bytes.fromhex(w)
                    for w in words
                )
                assert len(block) == BLOCK, line[:60]
                file.write(block)
    return made


def told(version):
    """The story of an image (crates/volume/tests/golden/story.rs): by name what each volume is, and
    holds."""
    volumes = {}
    for verb, name, *words in (
        line.split(" ") for line in (IMAGES / version / "story.txt").read_text().splitlines()
    ):
        if verb == "volume":
            volumes[name] = (words, bytearray(int(words[0])))
            continue
        offset, length = int(words[0]), int(words[1])
        data = bytearray(bytes([int(words[2])]) * length if verb == "write" else bytes(length))
        if verb == "write":
            for at in (at for at in range(length) if at == 0 or (offset + at) % BLOCK == 0):
                data[at : at + 8] = struct.pack("<Q", offset + at)[: length - at]
        volumes[name][1][offset : offset + length] = data
    return volumes


def words_of(image, names=THERE):
    return [word for name in names for word in ("--device", image[name])] + [
        "--cache",
        image["cache"],
    ]


def server_of(t, image, names=THERE):
    nbd_socket, control = t.dir / "nbd.sock", t.dir / "control.sock"
    command = [
        t.bin, "serve", *words_of(image, names), "--nbd-socket", nbd_socket, "--socket", control,
    ]
    return Server(t, command, nbd_socket, control, [])


def holds(server, volumes):
    for name, (about, data) in volumes.items():
        handle = server.connect(name)
        assert handle.get_size() == len(data), name
        for at in range(0, len(data), MIB):
            assert handle.pread(MIB, at) == data[at : at + MIB], (name, at)
        assert handle.is_read_only() == (about[-1] == "1"), name
        handle.shutdown()


@once
def test_0_2_0_is_opened(t):
    """Check, every dump, and all volumes over NBD; with the device that was away it is whole
    again."""
    image, volumes = lay_out(t, "0.2.0"), told("0.2.0")
    report = json.loads(t.forebay("check", "--data", "--json", *words_of(image), ok=(5,)).stdout)
    assert (report["errors"], report["damaged_copies"]) == (0, 0), report["problems"]
    assert (
        len(report["not_checked"]) == 1
        and "degraded (device 2 missing)" in report["not_checked"][0]
    ), report["not_checked"]

    def dump(*what):
        lines = [
            json.loads(line)
            for line in t.forebay("dump", *what, *words_of(image)).stdout.splitlines()
        ]
        assert lines and not [
            one for one in lines if one["kind"] == "unreadable" or "error" in one
        ], what
        return lines

    groups = [one["group"] for one in dump("groups") if one["kind"] == "group"]
    for what in (
        "superblock",
        "volumes",
        ("bitmap", groups[0]),
        *(
            ("cache", one)
            for one in ("superblock", "buckets", "index", "journal", "watermark", "summaries")
        ),
    ):
        dump(*((what,) if isinstance(what, str) else what))
    for name in volumes:
        dump("extents", name)
        node = dump("mapping", name)[0]
        dump("node", node["address"])
    server = server_of(t, image).start()
    shown = {one["name"]: one for one in json.loads(server.volume("list", "--json").stdout)}
    for name, (about, _) in volumes.items():
        limit = shown[name].get("limit") or {}
        found = [
            shown[name]["size_bytes"], shown[name]["sector_bytes"], shown[name]["cache_mode"],
            limit.get("iops") or 0, limit.get("bytes_per_second") or 0,
        ]
        assert [str(word) for word in found] == about[:5], (name, found)
    holds(server, volumes)
    server.kill()
    server = server_of(t, image, (*THERE, "disk2")).start()
    holds(server, volumes)
    server.cache("flush")
    # What was written while it was away comes by itself.
    states = lambda: {one["state"] for one in server.status()["pool"]["devices"]}
    wait_for(lambda: states() <= {"online", "spare"}, 30)
    server.stop()
    report = t.forebay("check", "--data", *words_of(image, (*THERE, "disk2"))).stdout
    assert "clean" in report, report


# Downgrades.


def crc32c(data, table=[]):
    if not table:
        for n in range(256):
            for _ in range(8):
                n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
            table.append(n)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


POOL, CACHE = b"FOREBAY1", b"FBCACHE1"
# What a newer version may say: field of the superblock, its form, its value, and the words of the
# refusal.
NEWER = {
    "version": (8, "<I", 2, "format version 2 is newer than 1"),
    "read-only compatible": (24, "<Q", 1 << 5, "uses features unknown here (bits 0x20)"),
    "incompatible": (32, "<Q", 1 << 40, "uses features unknown here (bits 0x10000000000)"),
}
ADVICE = "use a newer forebay"


def superblocks(path, magic):
    step = 64 * KIB if magic == POOL else 16 * KIB
    places = [
        step * slot + copy * BLOCK
        for slot in (1, 2, 3, 4)
        for copy in ((0, 1) if magic == POOL else (0,))
    ]
    with open(path, "r+b") as file:
        for place in places:
            file.seek(place)
            block = bytearray(file.read(BLOCK))
            if block.startswith(magic):
                yield file, place, block


def mark(path, magic, offset, form, value, only_newest=False):
    """All superblocks of a device say so, sealed; or the newest alone, as after one commit of a
    newer version."""
    marked = 0
    newest = max(struct.unpack_from("<Q", block, 72)[0] for _, _, block in superblocks(path, magic))
    for file, place, block in superblocks(path, magic):
        if only_newest and struct.unpack_from("<Q", block, 72)[0] < newest:
            continue
        old = struct.unpack_from(form, block, offset)[0]
        struct.pack_into(form, block, offset, value if offset == 8 else old | value)
        struct.pack_into("<I", block, BLOCK - 4, crc32c(block[: BLOCK - 4]))
        file.seek(place)
        file.write(block)
        marked += 1
    assert marked >= (1 if only_newest else 4), marked


def digest(paths):
    return [path.read_bytes() for path in paths]


@once
def test_what_is_newer_is_refused_by_name(t):
    """Pool and cache, by version and by both kinds of features: serve, check, dump and cache attach
    say so, and write nothing."""
    for kind, magic in (("pool", POOL), ("cache", CACHE)):
        for number, (what, (offset, form, value, words)) in enumerate(NEWER.items()):
            image = lay_out(t, "0.2.0")
            for name in THERE if kind == "pool" else ("cache",):
                mark(image[name], magic, offset, form, value, only_newest=number == 0)
            before = digest(image.values())
            print(f"--- {kind}: {what}")
            refusals = [server_of(t, image).command, [t.bin, "check", *words_of(image)]]
            shown = ("volumes",) if kind == "pool" else ("cache", "index")
            refusals.append([t.bin, "dump", *shown, *words_of(image)])
            for command in refusals:
                done = t.run(*command, ok=range(1, 101), timeout=30)
                text = done.stdout + done.stderr
                assert words in text and ADVICE in text and "panicked" not in text, text
                assert "forget-cache" not in text, text
            # A superblock is shown as far as it can be: it says why not.
            lines = t.forebay(
                "dump",
                *(("cache", "superblock") if kind == "cache" else ("superblock",)),
                *words_of(image),
            ).stdout
            assert len(re.findall(re.escape(words), lines)) >= 1, lines
            assert digest(image.values()) == before, "something was written"


@once
def test_a_newer_cache_is_not_overwritten(t):
    """`cache attach` and `create --cache` leave the cache of a newer version alone, and say what it
    is."""
    image = lay_out(t, "0.2.0")
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    for what, (offset, form, value, words) in NEWER.items():
        image = lay_out(t, "0.2.0")
        mark(image["cache"], CACHE, offset, form, value)
        before = digest([image["cache"]])
        text = server.cache("attach", image["cache"], ok=range(1, 101)).stderr
        print(what, text)
        assert words in text and ADVICE in text, text
        new = t.devices(64 * MIB)
        t.refused(
            t.bin, "create", "--device", *new, "--cache", image["cache"],
            saying=("holds a Forebay cache",),
        )
        assert digest([image["cache"]]) == before


@once
def test_a_newer_cache_is_not_repaired(t):
    """One superblock of a newer version: a repair leaves all of the cache alone."""
    server = t.up("--cache-size", "64M", size="1G", volume_size="64M")
    server.connect().pwrite(noise("newer", BLOCK), 0)
    server.stop()
    home = server.socket.parent
    offset, form, value, words = NEWER["incompatible"]
    mark(home / "cache.img", CACHE, offset, form, value, only_newest=True)
    before = digest([home / "cache.img"])
    text = t.refused(t.bin, "check", "--repair", home)
    assert words in text and ADVICE in text and "forget-cache" not in text, text
    assert digest([home / "cache.img"]) == before
