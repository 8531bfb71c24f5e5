"""fio with verification: its own checksums in every block, over its NBD engine."""

from harness.case import Skip, limit


def fio(t, server, *arguments, timeout=150):
    if "nbd" not in t.run("fio", "--enghelp").stdout.split():
        raise Skip("this fio was built without the nbd engine")
    done = t.run(
        "fio", "--ioengine=nbd", f"--uri={server.uri()}", "--group_reporting", "--verify_fatal=1",
        "--exitall_on_error=1", "--verify_state_save=0", *arguments, timeout=timeout, cwd=t.dir,
    )
    assert "verify:" not in done.stderr and "err= 0" in done.stdout, done.stdout + done.stderr


@limit(180)
def test_random_sizes_four_connections(t):
    """Random reads and writes of 512 B to 1 MiB on four connections, verified as it goes and once
    more at the end."""
    server = t.up(volume_size="1G")
    common = [
        "--name=mix",
        "--rw=randrw",
        "--rwmixread=40",
        "--bsrange=512-1M",
        "--bssplit=512/20:4k/30:1536/10:64k/20:13k/10:1M/10",
        "--size=64M",
        "--numjobs=4",
        "--offset_increment=64M",
        "--iodepth=16",
        "--serialize_overlap=1",
        "--verify=crc32c",
        "--verify_backlog=512",
        "--randrepeat=0",
    ]
    fio(t, server, *common)
    server.stop()
    server.check()


@limit(120)
def test_data_survives_restart(t):
    """Written by one run, verified by another after a clean restart and after a kill."""
    server = t.up(volume_size="256M")
    job = [
        "--name=keep", "--rw=randwrite", "--bs=4k", "--size=96M", "--iodepth=32", "--verify=crc32c",
        "--end_fsync=1",
    ]
    fio(t, server, *job, "--do_verify=0")
    server.restart()
    fio(t, server, *job, "--verify_only")
    server.kill()
    server.start()
    fio(t, server, *job, "--verify_only")


@limit(120)
def test_sub_block_and_sync(t):
    """Sectors of 512 B with an fsync every few writes; neighbours in one block come from different
    requests."""
    server = t.up(volume_size="64M")
    fio(
        t, server, "--name=sectors", "--rw=randwrite", "--bs=512", "--size=4M", "--io_size=2M",
        "--numjobs=4", "--offset_increment=4M", "--iodepth=8", "--fsync=32", "--verify=crc32c",
        "--do_verify=1",
    )


@limit(120)
def test_trim_among_writes(t):
    """Every block is trimmed, then written; the data is verified. (At a greater depth fio itself
    does not keep the two in order.)"""
    server = t.up(volume_size="256M")
    fio(
        t, server, "--name=trims", "--rw=randtrimwrite", "--bs=16k", "--size=32M", "--iodepth=1",
        "--numjobs=4", "--offset_increment=32M", "--verify=crc32c", "--do_verify=1",
    )
