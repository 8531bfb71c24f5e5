#!/usr/bin/env python3
"""Makes corpora for the targets from the golden images: every distinct kind of block goes to the target that decodes it.

    python3 fuzz/seeds.py            # fills fuzz/corpus/
"""

import pathlib

HERE = pathlib.Path(__file__).parent
IMAGES = sorted((HERE / "../crates/pool/tests/golden").glob("v*/disk*.txt"))
MAGICS = {b"FOREBAY1": "superblock", b"FBPG": "page", b"FBnd": "node"}


def blocks(path):
    """Offset and bytes of the blocks of an image."""
    for line in path.read_text().splitlines()[1:]:
        offset, *words = line.split(" ")
        parts = (w.split("*") for w in words)
        yield int(offset), b"".join(bytes.fromhex(p[0]) * (int(p[1]) if p[1:] else 1) for p in parts)


def records(node):
    """Seeds for `records`: length of the key, key, value."""
    prefix, body = node[40 : 40 + node[5]], node[72:]
    for i in range(int.from_bytes(node[6:8], "little")):
        at = int.from_bytes(body[i * 4 : i * 4 + 2], "little")
        suffix, length = body[at], int.from_bytes(body[at + 1 : at + 3], "little")
        key = prefix + body[at + 3 : at + 3 + suffix]
        yield bytes([len(key)]) + key + body[at + 3 + suffix : at + 3 + suffix + length]


def main():
    for image in IMAGES:
        for offset, block in blocks(image):
            target = next((t for magic, t in MAGICS.items() if block.startswith(magic)), None)
            if target is None:
                continue
            seeds = [(target, f"{offset}", block)]
            if target == "node":
                seeds += [("records", f"{offset}-{i}", r) for i, r in list(enumerate(records(block)))[:4]]
            for directory, name, data in seeds:
                path = HERE / "corpus" / directory / f"{image.parent.name}-{image.stem}-{name}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


main()
