"""The trainings of `plan --measure` tell the costs of all parts of a step apart."""

import dataclasses

import pytest

from twml_ops.distribute.measure_costs import REPEATED, SERVERS, TRAININGS, Measurement, costs_of
from twml_ops.planning import CpuCosts, StepParts
from twml_ops.planning.work import work_alone, work_in_cluster

pytestmark = pytest.mark.one_tf
# Without the parts that a process does not have.
TRUE = CpuCosts(
    StepParts(1e-3, 0, 5e-5, 2e-8, 2e-9, 2e-10, 8e-10, row=7e-8),
    StepParts(2e-3, 4e-5, 9e-5, 2e-8, 1e-9, shard=8e-5, row=3e-8, output=7e-9),
    StepParts(0, 3e-4, 1e-4, 2e-8, 3e-9, 2e-10, 1e-9, row=7e-8),
)


def measured(servers, training):
    """What a host without noise measures."""
    job = training.job()
    if not servers:
        return Measurement(training, 0, work_alone(job).times(TRUE.alone).total, 0.0)
    work = work_in_cluster("hybrid by row", job, servers, 1)
    server = servers * work.server.times(TRUE.server).total
    return Measurement(training, servers, work.worker.times(TRUE.worker).total, server)


def test_the_costs_of_a_host_without_noise_are_found():
    found = costs_of(
        [
            measured(servers, training)
            for servers, of_servers in (
                (0, TRAININGS),
                (1, TRAININGS),
                (SERVERS, TRAININGS[:REPEATED]),
            )
            for training in of_servers
        ]
    )
    for process in ("alone", "worker", "server"):
        want = dataclasses.astuple(getattr(TRUE, process))
        assert dataclasses.astuple(getattr(found, process)) == pytest.approx(want, rel=1e-3), (
            process
        )
