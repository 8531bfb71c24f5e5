"""When each block of a volume was written and flushed, and what it may hold after a power cut at
any moment.

All times are of CLOCK_MONOTONIC, as those of the shim's records. A block has one writer at a
time, so its states have an order. A state is a tuple with the stamp of each of the block's eight
sectors (harness/history.py).
"""

import threading
import time

from ..history import BLOCK, PER_BLOCK, SECTOR, sector_bytes, stamp_of

NEVER = 1 << 63


class State:
    """What a block held. `done`: when its writer was told so; NEVER if it was not."""

    __slots__ = ("done", "durable", "sent", "stamps")

    def __init__(self, stamps, sent, done=NEVER, durable=NEVER):
        self.stamps = stamps
        self.sent = sent
        self.done = done
        self.durable = durable


class Timeline:
    def __init__(self, blocks):
        self.blocks = [[State((0,) * PER_BLOCK, 0, 0, 0)] for _ in range(blocks)]
        self.flushes = []
        # A write of these ended with an error: they hold what they held, or what it wrote, in any
        # mixture of sectors.
        self.unknown = set()
        self.stamp = 0
        self.lock = threading.Lock()

    # What clients do.

    def begin(self, sector, count, zero=False):
        """A write is about to be sent: its states, and the bytes to send."""
        with self.lock:
            self.stamp += 1
            stamp = 0 if zero else self.stamp
        now = time.monotonic_ns()
        states = []
        for block in range(sector // PER_BLOCK, (sector + count - 1) // PER_BLOCK + 1):
            stamps = list(self.blocks[block][-1].stamps)
            for at in range(
                max(0, sector - block * PER_BLOCK),
                min(PER_BLOCK, sector + count - block * PER_BLOCK),
            ):
                stamps[at] = stamp
            state = State(tuple(stamps), now)
            self.blocks[block].append(state)
            states.append(state)
        return states, b"".join(
            sector_bytes(number, stamp) for number in range(sector, sector + count)
        )

    def complete(self, sector, count, states, durable=False):
        now = time.monotonic_ns()
        for state in states:
            state.done = now
            if durable:
                state.durable = now
        if self.unknown and sector % PER_BLOCK == 0 and count % PER_BLOCK == 0:
            with self.lock:
                self.unknown.difference_update(
                    range(sector // PER_BLOCK, (sector + count) // PER_BLOCK)
                )

    def failed(self, sector, count):
        with self.lock:
            self.unknown.update(range(sector // PER_BLOCK, (sector + count - 1) // PER_BLOCK + 1))

    def is_known(self, sector, count):
        blocks = range(sector // PER_BLOCK, (sector + count - 1) // PER_BLOCK + 1)
        return all(block not in self.unknown for block in blocks)

    def flushed(self, sent):
        """A flush that was sent then has just been answered."""
        with self.lock:
            self.flushes.append((sent, time.monotonic_ns()))

    def found(self, sent, held):
        """After a restart: what the server answers for each block is what it holds from now on.
        None: it does not say.
        """
        now = time.monotonic_ns()
        for block, stamps in enumerate(held):
            if stamps is not None:
                self.blocks[block].append(State(stamps, sent, now))
        self.unknown = {block for block, stamps in enumerate(held) if stamps is None}

    # What may be there.

    def floors(self, moment):
        """For each block the number of its oldest state that a power cut at this moment may
        leave.
        """
        covered = max((sent for sent, answered in self.flushes if answered <= moment), default=0)
        floors = []
        for states in self.blocks:
            floor = len(states) - 1
            while floor > 0 and states[floor].done > covered and states[floor].durable > moment:
                floor -= 1
            floors.append(floor)
        return floors

    def wrong(self, moment, held, floors=None):
        """What is there against what may be there; a list of what is wrong."""
        floors = floors or self.floors(moment)
        wrong = []
        for block, (states, floor, stamps) in enumerate(zip(self.blocks, floors, held)):
            if stamps is None or stamps == states[floor].stamps:
                continue
            if any(state.stamps == stamps for state in states[floor:] if state.sent <= moment):
                continue
            older = any(state.stamps == stamps for state in states[:floor])
            wrong.append(
                f"block {block} holds {stamps}{', which is older than flushed' if older else ''}; "
                f"flushed was {states[floor].stamps}, "
                f"then {sum(state.sent <= moment for state in states[floor + 1 :])} writes"
            )
        return wrong

    def wrong_now(self, held):
        """Of a server that was not restarted: each block holds what was written last."""
        wrong = []
        for block, (states, stamps) in enumerate(zip(self.blocks, held)):
            if stamps is None or stamps == states[-1].stamps:
                continue
            # Writes that ended with an error were done or not.
            sure = max(number for number, state in enumerate(states) if state.done != NEVER)
            if any(state.stamps == stamps for state in states[sure:]):
                continue
            before = [state.stamps for state in states[-4:-1]]
            wrong.append(
                f"block {block} holds {stamps}; written last was {states[-1].stamps}, "
                f"before that {before}"
            )
        return wrong

    def past_state(self, moment, held):
        """Whether these blocks are the volume at one moment of the past; None, or what says that
        they are not.
        """
        choices = []
        for states, stamps in zip(self.blocks, held):
            spans = []
            for number, state in enumerate(states):
                if state.stamps == stamps and state.sent <= moment:
                    until = states[number + 1].done if number + 1 < len(states) else NEVER
                    if spans and state.sent <= spans[-1][1]:
                        spans[-1] = (spans[-1][0], max(until, spans[-1][1]))
                    else:
                        spans.append((state.sent, until))
            choices.append(spans)
        for block, spans in enumerate(choices):
            if not spans:
                return f"block {block} holds {held[block]}, which it never held"
        # The moment, if there is one, is the beginning of some span.
        begins = sorted({begin for spans in choices for begin, _ in spans})
        low = max((spans[0][0] for spans in choices if len(spans) == 1), default=0)
        high = min((spans[0][1] for spans in choices if len(spans) == 1), default=NEVER)
        many = [spans for spans in choices if len(spans) > 1]
        for moment_ in [low, *begins]:
            if low <= moment_ <= high and all(
                any(begin <= moment_ <= end for begin, end in spans) for spans in many
            ):
                return None
        newest = max((spans[0][0], block) for block, spans in enumerate(choices) if len(spans) == 1)
        oldest = min((spans[0][1], block) for block, spans in enumerate(choices) if len(spans) == 1)
        return (
            f"no moment of the past: block {newest[1]} holds {held[newest[1]]}, "
            f"sent at {newest[0]}; "
            f"block {oldest[1]} still holds {held[oldest[1]]}, "
            f"though something newer was done at {oldest[1]}"
        )


def stamps_of(first_block, data):
    """The states of the blocks in these bytes."""
    held = []
    for at in range(0, len(data), BLOCK):
        sector = (first_block + at // BLOCK) * PER_BLOCK
        sectors = (
            data[at + number * SECTOR : at + (number + 1) * SECTOR] for number in range(PER_BLOCK)
        )
        held.append(tuple(stamp_of(sector + number, one) for number, one in enumerate(sectors)))
    return held
