"""What the page cache holds of a file: whose figures come from memory must be known, not
believed."""

import os
import subprocess


def is_memory(path):
    """Whether a file lives in the page cache anyway (tmpfs)."""
    done = subprocess.run(
        ["stat", "--file-system", "--format=%T", path], capture_output=True, text=True, check=True
    )
    return done.stdout.strip() == "tmpfs"


def resident(path):
    """The share of a file that is in the page cache."""
    done = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", path],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout) / os.path.getsize(path)


def evict(path):
    """Writes a file back and drops it from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def read_in(path):
    """Brings a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 22):
            pass
