"""Runs scenarios: one after the other in a client test, many at a time by `tests/crash`."""

import dataclasses
import time

from . import plan, recording
from .scenario import Scenario, Wrong


@dataclasses.dataclass
class Outcome:
    """What became of one scenario."""

    images: int = 0
    # Writes that were not durable when the power went, over all images.
    pending: int = 0
    # Reads, writes and flushes that failed because they were ordered to.
    faults: int = 0
    # (image or None, what was wrong, where it is kept)
    failures: list = dataclasses.field(default_factory=list)
    seconds: float = 0


def run(case, one, count, kept, library):
    """Records a scenario and opens so many images."""
    began = time.monotonic()
    outcome = Outcome()
    scenario = Scenario(case, one, library, kept)
    print(one, flush=True)
    try:
        scenario.record()
    except (Wrong, AssertionError) as error:
        outcome.failures.append((None, str(error), scenario.keep("none", 0, str(error))))
        return finish(outcome, scenario, began)
    outcome.faults = sum(scenario.log.failed())
    for number, moment in enumerate(scenario.moments(count)):
        open_image(scenario, number, moment, outcome)
    return finish(outcome, scenario, began)


def open_image(scenario, number, moment, outcome):
    try:
        scenario.image(number, moment)
    except (Wrong, AssertionError) as error:
        print(f"image {number}: {error}", flush=True)
        outcome.failures.append((number, str(error), scenario.keep(number, moment, str(error))))
    outcome.images += 1
    for server in scenario.case.servers:
        if server.alive():
            server.kill()


def finish(outcome, scenario, began):
    for server in scenario.case.servers:
        if server.alive():
            server.kill()
        if "panicked" in server.log_text():
            outcome.failures.append(
                (None, f"the server panicked: {server.log_text()[-1500:]}", None)
            )
    outcome.pending = scenario.pending
    outcome.seconds = time.monotonic() - began
    return outcome


def scenario_of(seed, **fixed):
    return plan.plan(seed, **fixed)


def library_in(directory):
    return recording.shim(directory)
