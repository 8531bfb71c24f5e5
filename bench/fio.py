"""One run of fio, as numbers."""

import json
import subprocess


def has_nbd():
    return "nbd" in subprocess.run(
        ["fio", "--enghelp"], capture_output=True, text=True, check=True
    ).stdout.split()


def run(target, *, rw, block, depth, jobs, sync=False, seconds=None):
    """A timed run against a target (fio's words for it, and the size), or once over all of it.
    Sequential jobs each have a part of their own. `sync`: flush after each write ("data": by
    fdatasync)."""
    words, size = target
    command = [
        "fio", "--name=bench", *words, f"--rw={rw}", f"--bs={block}", f"--iodepth={depth}",
        f"--numjobs={jobs}", "--group_reporting", "--norandommap", "--randrepeat=0",
        "--output-format=json", "--percentile_list=50:99:99.9",
    ]
    if seconds:
        command += ["--time_based", f"--runtime={round(seconds * 1000)}ms"]
    if rw in ("read", "write"):
        command += [f"--size={size // jobs}", f"--offset_increment={size // jobs}"]
    else:
        command += [f"--size={size}"]
    if sync:
        command += ["--fdatasync=1" if sync == "data" else "--fsync=1"]
    job = call(command)
    side = job["read"] if job["read"]["total_ios"] else job["write"]
    percentile = side["clat_ns"]["percentile"]
    numbers = {
        "iops": side["iops"],
        "mb_per_s": side["bw_bytes"] / 1e6,
        "requests": side["total_ios"],
        "bytes": side["io_bytes"],
        "seconds": side["runtime"] / 1000,
        "p50_us": percentile["50.000000"] / 1000,
        "p99_us": percentile["99.000000"] / 1000,
        "p999_us": percentile["99.900000"] / 1000,
        "max_us": side["clat_ns"]["max"] / 1000,
    }
    if sync:
        flush = job["sync"]["lat_ns"]["percentile"]
        numbers |= {
            "flush_p50_us": flush["50.000000"] / 1000,
            "flush_p99_us": flush["99.000000"] / 1000,
            "flush_max_us": job["sync"]["lat_ns"]["max"] / 1000,
        }
    return numbers


def fill(target, *, block="1m", end_fsync=True):
    """Writes everything once, in order, with data that is neither zero nor repeated."""
    words, size = target
    command = [
        "fio", "--name=fill", *words, "--rw=write", f"--bs={block}", "--iodepth=8",
        f"--size={size}", "--refill_buffers", "--output-format=json",
    ]
    return call(command + (["--end_fsync=1"] if end_fsync else []))


def cover(target):
    """Writes each 4 KiB once, in no order: a cache takes it all."""
    words, size = target
    return call([
        "fio", "--name=cover", *words, "--rw=randwrite", "--bs=4k", "--iodepth=32",
        f"--size={size}", "--end_fsync=1", "--output-format=json",
    ])


def scatter(target, seconds):
    """Overwrites 4 KiB here and there."""
    words, size = target
    return call(
        [
            "fio", "--name=scatter", *words, "--rw=randwrite", "--bs=4k", "--iodepth=32",
            f"--size={size}", "--norandommap", "--randrepeat=0", "--time_based",
            f"--runtime={seconds}", "--end_fsync=1", "--output-format=json",
        ]
    )


def call(command):
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)}\nended with {done.returncode}:\n"
            f"{done.stderr[-2000:]}{done.stdout[-2000:]}"
        )
    # The nbd engine prints a line of its own before the report.
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    if job["error"]:
        raise RuntimeError(f"{' '.join(command)}\nerror {job['error']}")
    return job
