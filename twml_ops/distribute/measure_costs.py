"""Measures what the parts of a training step cost on this host, in CPU time.

Small trainings run in one process and in clusters of processes of this host, by the same code as
any other training. They differ in what a step has: entries, columns, tables, servers. The costs are
the costs that explain the CPU times of all processes best.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from twml_ops import _child
from twml_ops.distribute.launch import LocalCluster, Task
from twml_ops.distribute.measured_training import SLOTS, MeasuredTraining
from twml_ops.planning import CpuCosts, StepParts, fit_costs
from twml_ops.planning.work import work_alone, work_in_cluster

TRAININGS = (
    MeasuredTraining(batch=32, entries=2, units=8, steps=192),  # the step and its messages
    MeasuredTraining(batch=32, entries=2, units=8, tables=8),  # tables
    MeasuredTraining(batch=4096, entries=2, units=64, ids=2048, steps=64),  # activations
    MeasuredTraining(batch=512, entries=200, units=8, ids=2048),  # entries
    MeasuredTraining(batch=512, entries=200, units=8, steps=48),  # rows
    MeasuredTraining(batch=512, entries=200, units=128, ids=2048, steps=48),  # products
    MeasuredTraining(batch=512, entries=200, units=128, steps=48),  # weights
)
SERVERS = 3  # of the cluster with more messages, shards and activations
REPEATED = 3
STEPS_PER_EXECUTION = 4
TIMEOUT = 60.0
_TRAINING_TIMEOUT = 300.0  # of each training, also on a busy machine
_SCHEDULER_CLOCK = 2  # CPUCLOCK_SCHED of Linux: the clock of all threads of a process


class MeasurementError(Exception):
    """The costs cannot be measured here."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The measurements of one training.

    Attributes:
        training: The training.
        servers: Number of servers; 0 for a training in one process.
        trainer_seconds: CPU time of a step in the process that trains.
        server_seconds: CPU time of a step in all servers.
    """

    training: MeasuredTraining
    servers: int
    trainer_seconds: float
    server_seconds: float


def measure_costs(
    slots: int = 1,
    steps_per_execution: int = STEPS_PER_EXECUTION,
    trainings: Sequence[MeasuredTraining] = TRAININGS,
    show: Callable[[str], None] = lambda _: None,
) -> tuple[CpuCosts, list[Measurement]]:
    """Measures the costs of this host.

    Args:
        slots: Numbers that the optimizer stores for each weight of a table: 0, 1 or 2.
        steps_per_execution: Argument of `HybridTrainer`. The steps of each training are a multiple
            of it.
        trainings: The trainings; the first `REPEATED` are repeated with more servers.
        show: Called with a line for each cluster that starts.

    Returns:
        The costs, and the measurements that they are from.

    Raises:
        MeasurementError: A training fails, or the system is not Linux.
        ValueError: There is no optimizer with so many slots.
    """
    if slots not in SLOTS:
        raise ValueError(f"slots must be one of {', '.join(map(str, SLOTS))}; got {slots}")
    if sys.platform != "linux":
        raise MeasurementError(f"the CPU time of servers is measured on Linux, not {sys.platform}")
    options = {"steps_per_execution": steps_per_execution, "partition_axis": "row"}
    found: list[Measurement] = []
    for servers, chosen in ((0, trainings), (1, trainings), (SERVERS, trainings[:REPEATED])):
        show(f"{servers} servers" if servers else "one process")
        setting = {"slots": slots, "timeout": TIMEOUT, "options": options}
        found += _measure(servers, chosen, setting)
    return costs_of(found), found


def costs_of(found: Sequence[Measurement]) -> CpuCosts:
    """Computes the costs that explain measurements best.

    Args:
        found: Trainings in one process and in clusters.
    """
    alone: list[tuple[StepParts, float]] = []
    worker: list[tuple[StepParts, float]] = []
    server: list[tuple[StepParts, float]] = []
    for each in found:
        training = each.training
        job = training.job()
        if not each.servers:
            alone.append((work_alone(job), each.trainer_seconds))
            continue
        work = work_in_cluster("hybrid by row", job, each.servers, 1)
        worker.append((work.worker, each.trainer_seconds))
        server.append((work.server, each.server_seconds / each.servers))
    return CpuCosts(*(fit_costs(*zip(*of, strict=True)) for of in (alone, worker, server)))


def _measure(
    servers: int, trainings: Sequence[MeasuredTraining], setting: dict[str, Any]
) -> list[Measurement]:
    """Runs trainings one after the other with so many servers and one worker."""
    setting = {**setting, "trainings": [dataclasses.asdict(t) for t in trainings]}
    command = _child.command("twml_ops.distribute.measured_training", json.dumps(setting))
    events: dict[tuple[str, int], tuple[int, float, float]] = {}
    lines: list[str] = []

    def receive(line: str) -> None:
        name, _, text = line.partition("] ")
        lines.append(line)
        if name == "[worker 0" and text.startswith('["'):
            event, number, step, seconds = json.loads(text)
            events[event, number] = step, seconds, sum(map(_cpu_seconds, processes))

    processes: list[Task] = []
    with LocalCluster(
        command, servers, 1, max_restarts=0, environment={"TF_CPP_MIN_LOG_LEVEL": "2"}, show=receive
    ) as cluster:
        processes += [t for t in cluster.tasks if t.job == "ps"]
        if cluster.wait(len(trainings) * _TRAINING_TIMEOUT):
            raise MeasurementError(f"a measured training failed: {lines[-1:]}")
    found = []
    for number, training in enumerate(trainings):
        steps, trainer, server = (
            b - a for a, b in zip(events["begin", number], events["end", number], strict=True)
        )
        found.append(Measurement(training, servers, trainer / steps, server / steps))
    return found


def _cpu_seconds(task: Task) -> float:
    """CPU time of a running process of this user, in seconds."""
    return time.clock_gettime((~task.process.pid << 3) | _SCHEDULER_CLOCK)
