"""The jobs of the trainings for `twml_ops.planning`, and the steps/s that it predicts."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from benchmarks.curve import cells
from benchmarks.curve.cells import Cell
from twml_ops.planning import (
    BYTES_OF_NUMBER,
    ClusterResources,
    Compute,
    CpuCosts,
    Job,
    Prediction,
    Table,
    predict,
)
from twml_ops.planning.work import work_alone, work_in_cluster

SLOTS = {"reference": 0, "flights": 1, "criteo": 1}  # of the optimizers
PLAIN = "reference"  # whose steps consist of nothing but what `plan --measure` knows
AXES = {axis: f"hybrid by {axis}" for axis in cells.AXES}


def measured_costs() -> dict[str, Any]:
    """Measures as `twml-ops plan --measure` does, for the optimizers of the trainings.

    Returns:
        Number of slots -> microseconds by process and part.
    """
    from twml_ops.distribute.measure_costs import measure_costs

    return {
        str(slots): measure_costs(slots, cells.TOGETHER)[0].to_json()
        for slots in sorted(set(SLOTS.values()))
    }


def described_jobs() -> dict[str, Any]:
    """The tables and the first batches of each training.

    Returns:
        Name of the training -> number of batches that are exchanged together -> the fields of the
        `Job` of their joined batch.
    """
    from benchmarks.cluster_cost.trainings import TRAININGS
    from benchmarks.curve.batch_recorder import job_of

    together = {name: {1} for name in SLOTS}
    for cell in cells.cells():
        together[cell.training].add(cell.exchange_every)
    return {
        name: {
            str(count): asdict(job_of(TRAININGS[name](1), SLOTS[name], count))
            for count in sorted(counts)
        }
        for name, counts in together.items()
    }


class Factors(NamedTuple):
    """A number for the hosts with workers and one for those with servers."""

    workers: float
    servers: float


NONE = Factors(1.0, 1.0)


class Predictions:
    """Predicts the cells by the costs of this machine.

    A quota of CPU time makes every step slower, so that all costs are multiplied by the ratio of
    what one host with `PLAIN` needs and what they say. The remaining difference of one host with
    another training is what its model needs beside its tables. What the network costs more than the
    loopback of `plan --measure` counts for each message and byte that a host sends or receives.

    Args:
        costs: what `measured_costs` returned.
        wire: seconds of CPU time for each message and byte; see `wire_cost.more_seconds`.
        jobs: what `described_jobs` returned.
        alone: name of a training -> seconds of CPU time that one host needs for a step.
        share: the share of one core, for each host.
        burst: seconds of CPU time of a host in each period of its quota.
    """

    def __init__(
        self,
        costs: dict[str, Any],
        wire: dict[str, float],
        jobs: dict[str, Any],
        alone: dict[str, float],
        share: float,
        burst: float = 0.0,
    ) -> None:
        self._jobs = {
            (name, int(count)): _job(fields)
            for name, of_training in jobs.items()
            for count, fields in of_training.items()
        }
        self._costs = {int(slots): CpuCosts.from_json(of) for slots, of in costs.items()}
        self._wire, self._alone, self._share, self._burst = wire, alone, share, burst

    def without_bursts(self) -> Predictions:
        """The predictions for hosts that never are at full speed."""
        found = copy.copy(self)
        found._burst = 0.0
        return found

    @property
    def slowdown(self) -> float:
        """The factor of all costs."""
        return self._alone[PLAIN] / self._seconds_alone(PLAIN)

    def predict(self, cell: Cell, factors: Factors = NONE) -> float | None:
        """Predicts the steps/s of a cell of a hybrid strategy; None for others.

        Args:
            cell: the cell.
            factors: by which workers and servers need more CPU time than the costs say.
        """
        found = self._best(cell, factors)
        return None if found is None else cell.exchange_every * found.steps_per_second

    def factors(self, cell: Cell, used: Factors) -> Factors:
        """Compares the CPU time of a cell with its prediction.

        Args:
            cell: a cell of a hybrid strategy.
            used: CPU time for a batch of one worker, in seconds: of the hosts with workers and of
                all hosts with servers.
        """
        found = self._best(cell, NONE)
        assert found is not None
        every = cell.exchange_every
        worker = found.worker_cpu / every
        servers = found.server_cpu * cell.servers / cell.workers / every
        if cell.inside:
            both = used.workers / (worker + servers)
            return Factors(both, both)
        return Factors(used.workers / worker, used.servers / servers)

    def _best(self, cell: Cell, factors: Factors) -> Prediction | None:
        """The prediction of an exchange, with the faster axis if the cell has both."""
        egress = cell.egress(self._share)
        if cell.way not in cells.MODES or egress is None or cell.training not in self._alone:
            return None
        every = cell.exchange_every
        cluster = ClusterResources(
            egress,
            cell.servers,
            cell.workers,
            cores=self._share,
            servers_in_workers=cell.inside,
            asynchronous=cells.MODES[cell.way] != "sync",
            steps_per_call=max(1, cell.steps_per_execution // every),
            burst=self._burst,
        )
        bytes_of_number = BYTES_OF_NUMBER[cell.wire_dtype]
        job = replace(self._jobs[cell.training, every], activation_bytes=bytes_of_number)
        compute = self._compute(cell.training)
        assert compute.costs is not None
        local = (every - 1) * compute.costs.worker.step + every * compute.dense
        found = []
        for axis in AXES.values() if cell.axis == "auto" else [AXES[cell.axis]]:
            sent = predict(axis, job, cluster).sent
            exchanged = sent["worker"] + sent["server"] * cell.servers / cell.workers
            work = work_in_cluster(axis, job, cell.servers, cell.workers, cluster.remote_share)
            seconds = self._wire["byte"] * exchanged + self._wire["message"] * work.worker.message
            on_wire = replace(compute, dense=local + seconds, sparse=seconds)
            found.append(predict(axis, job, cluster, _scaled(on_wire, factors)))
        return min(found, key=lambda prediction: prediction.seconds)

    def _compute(self, training: str) -> Compute:
        factor = self.slowdown
        costs = _scaled(Compute(costs=self._costs[SLOTS[training]]), Factors(factor, factor))
        more = self._alone[training] - factor * self._seconds_alone(training)
        return replace(costs, dense=max(0.0, more))

    def _seconds_alone(self, training: str) -> float:
        costs = self._costs[SLOTS[training]]
        return work_alone(self._jobs[training, 1]).times(costs.alone).total


def calibrating(cell: Cell) -> Cell:
    """The cell whose CPU time calibrates the costs of a cell: the smallest one of its kind.

    It has one server and several workers, which exchange dense weights. One synchronous worker
    waits for no other, as asynchronous ones.

    Args:
        cell: a cell of a hybrid strategy.
    """
    together = cell.way == cells.SYNCHRONOUS and cell.workers > 1
    return Cell(cell.training, cells.SYNCHRONOUS if together else cells.ASYNCHRONOUS, 1, 2)


def _scaled(compute: Compute, by: Factors) -> Compute:
    """Multiplies all costs of workers and of servers."""
    assert compute.costs is not None
    factors = {"alone": by.workers, "worker": by.workers, "server": by.servers}
    costs = {
        process: {part: factors[process] * cost for part, cost in parts.items()}
        for process, parts in compute.costs.to_json().items()
    }
    dense, sparse = by.workers * compute.dense, by.servers * compute.sparse
    return replace(compute, costs=CpuCosts.from_json(costs), dense=dense, sparse=sparse)


def _job(fields: dict[str, Any]) -> Job:
    return Job(**{**fields, "tables": tuple(Table(**table) for table in fields["tables"])})
