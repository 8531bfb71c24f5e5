"""Data that tests write and know again."""

import os
import pathlib
import random
import shutil

KIB, MIB, GIB, TIB, PIB = (1 << shift for shift in (10, 20, 30, 40, 50))
BLOCK = 4096


def noise(seed, length):
    """Bytes that only this seed gives; they do not compress and are not zero."""
    return random.Random(repr(seed)).randbytes(length)


def sample_tree(target, limit_bytes):
    """Copies part of /usr: files of all sizes, directories, symbolic and hard links, long names.
    The same files on every call."""
    target = pathlib.Path(target)
    total = 0
    for root in ("/usr/bin", "/usr/share", "/usr/lib"):
        room = total + limit_bytes // 3
        for here, directories, files in os.walk(root):
            directories.sort()
            into = target / here.lstrip("/")
            into.mkdir(parents=True, exist_ok=True)
            for name in sorted(files):
                source = pathlib.Path(here) / name
                try:
                    size = source.lstat().st_size
                    if size > 16 * MIB or not (source.is_symlink() or source.is_file()):
                        continue
                    shutil.copy2(source, into / name, follow_symlinks=False)
                except OSError:
                    continue
                total += size
                if total > room:
                    break
            if total > room:
                break
    (target / "links").mkdir()
    (target / "links" / "one").write_bytes(noise("links", 10_000))
    os.link(target / "links" / "one", target / "links" / "two")
    (target / ("long" * 60)).write_text("a long name\n")
    with open(target / "sparse", "wb") as sparse:
        sparse.seek(5 * MIB)
        sparse.write(b"end")
    assert total > limit_bytes // 4, "there is too little in /usr"
    return total


def ext4_image(case, path, size_bytes):
    """A disk image as people have them: an ext4 file system filled from /usr. It is kept for the
    next test, and the next run."""
    kept = case.downloads / f"ext4-{size_bytes}.img"
    if not kept.exists():
        tree = case.dir / "tree"
        sample_tree(tree, size_bytes * 2 // 3)
        made = case.downloads / f"ext4-{os.getpid()}.new"
        with open(made, "wb") as file:
            file.truncate(size_bytes)
        case.run("mke2fs", "-q", "-t", "ext4", "-d", tree, made)
        shutil.rmtree(tree)
        made.rename(kept)
    case.run("cp", "--sparse=always", kept, path)
    return path


def find_blocks(path, wanted):
    """Where in a device file these whole blocks lie: a dict from the block's key to its offset.
    Holes are skipped."""
    index = {bytes(block): key for key, block in wanted.items()}
    found = {}
    for start, end in data_ranges(path):
        with open(path, "rb") as file:
            file.seek(start - start % BLOCK)
            offset = start - start % BLOCK
            while offset < end:
                chunk = file.read(4 * MIB)
                if not chunk:
                    break
                for at in range(0, len(chunk) - BLOCK + 1, BLOCK):
                    key = index.get(chunk[at : at + BLOCK])
                    if key is not None:
                        found[key] = offset + at
                offset += len(chunk)
    return found


def data_ranges(path):
    """The parts of a sparse file that hold data."""
    ranges = []
    descriptor = os.open(path, os.O_RDONLY)
    try:
        end = 0
        while True:
            try:
                start = os.lseek(descriptor, end, os.SEEK_DATA)
            except OSError:
                return ranges
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            ranges.append((start, end))
    finally:
        os.close(descriptor)


def flip(path, offset, mask=0x40):
    """Changes one byte of a file."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        old = os.pread(descriptor, 1, offset)
        os.pwrite(descriptor, bytes([old[0] ^ mask]), offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
