"""State machines of Hypothesis: few steps in CI, and as many as `--steps` says in slow tests."""

import math

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

STEPS = 50  # of an example, at most
USUAL = 38  # fewer than an example has on average


def run(machine, steps):
    """Runs a machine for so many steps; the same ones each time.

    Args:
        machine: class of the machine, with the attribute `steps`, which counts them.
        steps: how many, at least.
    """
    machine.steps = 0
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=math.ceil(steps / USUAL),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{machine.__name__}: {machine.steps:,} steps")
