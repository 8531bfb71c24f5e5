"""Block traces as CSV: a header line, then `time,op,offset,length` for each request.

Times are seconds, with or without a fraction, from any beginning; op is R or W; offset and length
are bytes, multiples of 512. Requests come in the order of their times; where a file has them in
another order they are sorted, those of one time stay as they are.
"""

import csv
import math
import typing

SECTOR = 512
# What an NBD server must take at most; a longer request is no request of a disk.
LONGEST = 32 << 20
# Requests begin at least so far before the end of the volume that they are replayed on.
TAIL = 1 << 20
HEADER = ["time_s", "op", "offset_bytes", "length_bytes"]


class Request(typing.NamedTuple):
    """One request: when (seconds), R or W, and bytes."""

    time: float
    op: str
    offset: int
    length: int


class Malformed(ValueError):
    """A file that is not such a trace: it says which file, which line, and what is wrong."""


def read(path):
    """All requests of a file."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.reader(file)
        header = next(rows, None)
        if header is None:
            raise Malformed(f"{path}: the file is empty, it needs a header line")
        if is_request(header):
            raise Malformed(f"{path}, line 1: a request where the header line belongs")
        if len(header) != len(HEADER):
            words = ",".join(header)[:80]
            what = f"the header has {len(header)} columns, not {len(HEADER)}"
            raise Malformed(f"{path}, line 1: {what}: {words!r}")
        requests = []
        try:
            for row in rows:
                if row:
                    requests.append(parse(row))
        except (ValueError, csv.Error) as error:
            raise Malformed(f"{path}, line {rows.line_num}: {error}") from None
    if not requests:
        raise Malformed(f"{path}: no request after the header line")
    return sorted(requests, key=lambda request: request.time)


def is_request(row):
    try:
        parse(row)
    except ValueError:
        return False
    return True


def parse(row):
    if len(row) != len(HEADER):
        raise ValueError(f"{len(row)} columns, not 4: {','.join(row)[:80]!r}")
    when, op, offset, length = (cell.strip() for cell in row)
    request = Request(seconds(when), op, whole("offset", offset), whole("length", length))
    if op not in ("R", "W"):
        raise ValueError(f"op {op!r} is neither R nor W")
    if not 0 < request.length <= LONGEST:
        raise ValueError(f"length {length} is not between {SECTOR} and {LONGEST}")
    return request


def seconds(text):
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"time {text!r} is not a number of seconds") from None
    if not math.isfinite(value):
        raise ValueError(f"time {text!r} is not a number of seconds")
    return value


def whole(what, text):
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{what} {text!r} is not a whole number of bytes") from None
    if value < 0 or value % SECTOR:
        raise ValueError(f"{what} {text} is not a multiple of {SECTOR} from 0 on")
    return value


def write(path, requests):
    """Writes a file that `read` reads."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(HEADER)
        rows.writerows((f"{when:.6f}", op, offset, length) for when, op, offset, length in requests)


def placed(requests, size, shift):
    """The requests at the places that a volume of `size` bytes has for them: offsets are moved by
    `shift` sectors and wrap into the volume."""
    room = size - max(TAIL, max(request.length for request in requests))
    if room < SECTOR:
        raise ValueError(f"a volume of {size} bytes is too small for this trace")
    return [
        request._replace(offset=(request.offset + shift * SECTOR) % room // SECTOR * SECTOR)
        for request in requests
    ]
