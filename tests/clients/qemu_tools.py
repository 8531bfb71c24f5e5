"""qemu-img and qemu-io: images converted in and out, and every kind of request with a pattern."""

from harness.case import limit
from harness.data import KIB, MIB, ext4_image, noise


@limit(120)
def test_qemu_img_convert_and_compare(t):
    """raw -> volume -> qcow2 -> raw, with qemu-img's own comparison and check at each step."""
    image = ext4_image(t, t.dir / "image", 128 * MIB)
    server = t.up(volume_size="128M")
    uri = server.uri()
    t.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, uri)
    t.run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, uri)
    t.run(
        "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-m", "8", "-W", uri, t.dir / "out.qcow2"
    )
    t.run("qemu-img", "check", t.dir / "out.qcow2")
    t.run("qemu-img", "compare", t.dir / "out.qcow2", image)
    server.volume("create", "copy", "--size", "128M")
    t.run("qemu-img", "convert", "-n", "-O", "raw", t.dir / "out.qcow2", server.uri("copy"))
    t.run("qemu-img", "compare", "-f", "raw", "-F", "raw", uri, server.uri("copy"))
    assert '"virtual-size": 134217728' in t.run("qemu-img", "info", "--output=json", uri).stdout
    server.restart()
    t.run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, uri)


def test_qcow2_inside_the_volume(t):
    """A qcow2 image that lives in the volume: much small metadata beside data."""
    server = t.up(volume_size="256M")
    uri = server.uri()
    t.run("qemu-img", "create", "-f", "qcow2", uri, "512M")
    writes = []
    for number in range(40):
        writes += ["-c", f"write -P {number + 1} {number * 11 * MIB + number * 512} {64 * KIB}"]
    t.run("qemu-io", "-f", "qcow2", *writes, "-c", "flush", uri)
    t.run("qemu-img", "check", "-f", "qcow2", uri)
    server.kill()
    server.start()
    t.run("qemu-img", "check", "-f", "qcow2", uri)
    reads = []
    for number in range(40):
        reads += ["-c", f"read -P {number + 1} {number * 11 * MIB + number * 512} {64 * KIB}"]
    io(t, *reads, form="qcow2", uri=uri)


def io(t, *commands, uri, form="raw"):
    """qemu-io; a pattern that is not found is an error whatever the exit status says."""
    done = t.run("qemu-io", "-t", "none", "-f", form, *commands, uri)
    text = done.stdout + done.stderr
    assert "failed" not in text.lower() and "error" not in text.lower(), text


def each(*commands):
    return [word for command in commands for word in ("-c", command)]


def test_qemu_io_patterns(t):
    """Writes, vectored, asynchronous, with FUA; zeroes with and without unmap; discards; each read
    back by pattern."""
    server = t.up(volume_size="64M")
    uri = server.uri()
    io(
        t,
        *each(
            "write -P 0xaa 0 4M", "read -P 0xaa 0 4M", "write -f -P 0xbb 1M 64k",
            "read -P 0xbb 1M 64k", "read -P 0xaa 1114112 512", "write -P 0xcc 512 512",
            "read -P 0xaa 0 512", "read -P 0xcc 512 512", "read -P 0xaa 1024 3072",
            "writev -P 0xdd 2M 4k 512 64k", "readv -P 0xdd 2M 4k 512 64k", "write -z 3M 64k",
            "read -P 0 3M 64k", "write -z -u 3200k 64k", "read -P 0 3200k 64k", "discard 3400k 64k",
            "read -P 0 3400k 64k", "read -P 0xaa 3464k 64k", "write -z -f 3M 512",
            "write -z 3149312 512", "read -P 0 3149312 512", "flush",
        ),
        uri=uri,
    )
    writes = [
        f"aio_write -P {number + 1} {8 * MIB + number * 12 * KIB} 12k" for number in range(32)
    ]
    io(
        t,
        *each(
            *writes,
            "aio_flush",
            *[f"read -P {number + 1} {8 * MIB + number * 12 * KIB} 12k" for number in range(32)],
        ),
        uri=uri,
    )
    io(t, *each("read -P 0 32M 16M", "write -P 7 67108352 512", "read -P 7 67108352 512"), uri=uri)
    t.run("qemu-io", "-f", "raw", "-c", "write 67108352 1024", uri, ok=(1,))
    server.restart()
    io(
        t,
        *each(
            "read -P 0xbb 1M 64k",
            "read -P 0xcc 512 512",
            "read -P 0 3M 64k",
            "read -P 7 67108352 512",
        ),
        uri=uri,
    )


def test_qemu_img_keeps_holes(t):
    """What was never written is a hole to qemu, so that a copy of a thin volume is thin."""
    server = t.up(volume_size="64M")
    handle = server.connect()
    data = noise("holes", MIB)
    handle.pwrite(data, MIB)
    handle.flush()
    t.run("qemu-img", "convert", "-f", "raw", "-O", "raw", "-S", "4k", server.uri(), t.dir / "out")
    with open(t.dir / "out", "rb") as file:
        file.seek(MIB)
        assert file.read(MIB) == data
    assert (t.dir / "out").stat().st_blocks * 512 <= 2 * MIB, (
        "block status lets qemu-img keep the holes"
    )
