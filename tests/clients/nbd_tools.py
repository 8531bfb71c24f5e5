"""nbdinfo and nbdcopy: what the export says of itself, and whole images in and out."""

import json
import socket

from harness.case import limit
from harness.data import GIB, MIB, ext4_image


def test_nbdinfo_size_and_flags(t):
    """The default export offers what the README says."""
    server = t.up()
    assert t.run("nbdinfo", "--size", server.uri()).stdout.strip() == str(8 * GIB)
    for ability in (
        "write", "flush", "fua", "trim", "zero", "fast-zero", "cache", "df", "multi-conn",
        "structured",
    ):
        wanted = "structured-reply" if ability == "structured" else ability
        question = ("--is", wanted) if ability == "structured" else ("--can", wanted)
        t.run("nbdinfo", *question, server.uri())
    t.run("nbdinfo", "--is", "read-only", server.uri(), ok=(2,))
    t.run("nbdinfo", "--is", "rotational", server.uri(), ok=(0, 2))


def test_nbdinfo_json_and_list(t):
    server = t.up(volume_size="3G")
    server.volume("create", "second", "--size", "1G")
    export = json.loads(t.run("nbdinfo", "--json", server.uri()).stdout)
    assert export["protocol"] == "newstyle-fixed" and export["structured"] is True, export
    vol0 = export["exports"][0]
    assert vol0["export-size"] == 3 * GIB and vol0["is_read_only"] is False, vol0
    assert "base:allocation" in vol0["contexts"], vol0
    assert vol0["block_size_minimum"] in (1, 512), vol0
    assert vol0["block_size_preferred"] == 4096, vol0
    assert vol0["block_size_maximum"] == 32 * MIB, vol0
    listed = json.loads(t.run("nbdinfo", "--list", "--json", server.uri("")).stdout)
    sizes = {one["export-name"]: one["export-size"] for one in listed["exports"]}
    assert sizes == {"vol0": 3 * GIB, "second": GIB}, sizes


def test_nbdinfo_unknown_export(t):
    """A wrong name is refused, and the server goes on."""
    server = t.up()
    t.run("nbdinfo", server.uri("nothing"), ok=(1,))
    t.run("nbdinfo", server.uri("n" * 2000), ok=(1,))
    t.run("nbdinfo", "--size", server.uri())


def test_nbdinfo_over_tcp(t):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    t.up("--nbd-listen", f"127.0.0.1:{port}", "--tls", "off")
    assert t.run("nbdinfo", "--size", f"nbd://127.0.0.1:{port}/vol0").stdout.strip() == str(8 * GIB)


def test_nbdinfo_map(t):
    """Block status as a client sees it: holes where nothing was written or all was discarded."""
    server = t.up(volume_size="1G")
    handle = server.connect()
    handle.pwrite(b"a" * MIB, 10 * MIB)
    handle.pwrite(b"b" * MIB, 100 * MIB)
    handle.trim(MIB, 100 * MIB)
    handle.shutdown()
    extents = json.loads(t.run("nbdinfo", "--json", "--map", server.uri()).stdout)
    data = [(one["offset"], one["length"]) for one in extents if one["type"] == 0]
    assert data == [(10 * MIB, MIB)], extents
    assert sum(one["length"] for one in extents) == GIB
    assert all(one["type"] == 3 for one in extents if one["offset"] != 10 * MIB), extents


@limit(120)
def test_nbdcopy_image_in_and_out(t):
    """A real file system image goes in and comes out the same, also after a restart, and the copy
    stays thin."""
    image = ext4_image(t, t.dir / "image", 192 * MIB)
    server = t.up(volume_size="192M")
    t.run("nbdcopy", "--flush", image, server.uri())
    t.run("nbdcopy", server.uri(), t.dir / "out")
    t.run("cmp", image, t.dir / "out")
    t.run("e2fsck", "-fn", t.dir / "out")
    server.restart()
    t.run("nbdcopy", "--connections=4", "--requests=16", server.uri(), t.dir / "out2")
    t.run("cmp", image, t.dir / "out2")
    # From one volume to another, both ends ours; and from a pipe, which gives no extents.
    server.volume("create", "copy", "--size", "192M")
    t.run("nbdcopy", "--flush", server.uri(), server.uri("copy"))
    t.run("nbdcopy", server.uri("copy"), t.dir / "out3")
    t.run("cmp", image, t.dir / "out3")
    allocated = {one["name"]: one["allocated_bytes"] for one in server.status()["volumes"]}
    used = image.stat().st_blocks * 512
    assert allocated["vol0"] <= used + 16 * MIB, (allocated, used)
    server.stop()
    server.check()
