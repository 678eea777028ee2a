"""How each table of a run is divided over the servers: by one axis, or as a plan says.

`sizes_of_tables` counts what a batch asks of them, from which a plan can be made.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server import encoding
from twml_ops.distribute.parameter_server.cluster import Cluster
from twml_ops.distribute.parameter_server.division import Division, divide
from twml_ops.distribute.parameter_server.placement import ParameterServerPlacement
from twml_ops.distribute.parameter_server.tables import RemoteTable
from twml_ops.placement import placement_scope
from twml_ops.planning import ClusterResources, Job, ShardedTable, ShardingPlan, Table
from twml_ops.planning.sharding_axis import EGRESS_PER_CORE, prefers_rows
from twml_ops.planning.sharding_plan import COLUMN, REPLICATED, ROW, TABLE, read_plan

_AXES = (ROW, COLUMN, "auto")
REPLICATED_ROWS = 512
"""The default of `replicated_rows`, the number of examples of a common batch: a worker gets no more
numbers of such a table in a step than of its product."""


class TablePlan:
    """How the tables of a run are divided.

    Args:
        axis: The `partition_axis` of `HybridTrainer`.
        plan: The `plan` of `HybridTrainer`.
        servers: The number of servers.
        replicated_rows: The `replicated_rows` of `HybridTrainer`.

    Raises:
        ValueError: The axis is unknown or given beside a plan, `replicated_rows` is negative, or
            the plan is of another number of servers.
        OSError: The file of the plan cannot be read.
    """

    def __init__(
        self,
        axis: str,
        plan: ShardingPlan | str | os.PathLike[str] | None,
        servers: int,
        replicated_rows: int = REPLICATED_ROWS,
    ) -> None:
        if axis not in _AXES:
            raise ValueError(f"partition_axis must be one of {_AXES}, got {axis!r}")
        if replicated_rows < 0:
            raise ValueError(f"replicated_rows must be at least 0, got {replicated_rows}")
        self._axis, self._servers = axis, servers
        self._replicated_rows = replicated_rows
        self._names: tuple[str, ...] | None = None
        self._places: tuple[ShardedTable, ...] | None = None
        self._source = "plan"
        if plan is None:
            return
        if axis != "auto":
            raise ValueError(
                'partition_axis must be "auto" beside a plan, which divides all tables, got '
                f"{axis!r}"
            )
        if not isinstance(plan, ShardingPlan):
            self._source = f"plan {os.fspath(plan)}"
            self._names, plan = read_plan(Path(plan))
        if len(plan.seconds) != servers:
            raise ValueError(
                f"{self._source}: expected a plan for the {servers} servers of the cluster, got "
                f"one for {len(plan.seconds)}"
            )
        self._places = plan.tables

    def replicates(self, number: int, path: str, rows: int) -> bool:
        """Tells whether every worker has a copy of a table, as of a dense weight.

        Args:
            number: The number of the table, in the order in which layers create tables.
            path: "layer/weight".
            rows: Its rows.
        """
        if self._places is None:
            return self._axis == "auto" and rows <= self._replicated_rows
        place = self._place(number, path)
        return place is not None and place.way == REPLICATED

    def check(self, placement: ParameterServerPlacement) -> None:
        """Checks that the plan, if there is one, is of these tables and that they can be divided.

        Args:
            placement: The placement with the tables of the model.

        Raises:
            ValueError: It is of other tables, or has too many parts of one, or copies a table with
                the rows of a lookup.
        """
        if self._places is None:
            return
        paths = placement.paths
        if self._names is not None and sorted(self._names) != sorted(paths):
            raise ValueError(
                f"{self._source}: expected the tables of the model, {', '.join(sorted(paths))}; "
                f"got {', '.join(sorted(self._names))}"
            )
        if len(self._places) != len(paths):
            raise ValueError(
                f"{self._source}: expected {len(paths)} tables as the model has, "
                f"{', '.join(paths)}; got {len(self._places)}"
            )
        for table in placement.tables:
            self._planned(table)

    def divide(
        self, placement: ParameterServerPlacement, cluster: ClusterResources
    ) -> list[Division]:
        """Returns the division of each table.

        Args:
            placement: The placement with the tables, which knows the size of the first batch.
            cluster: The hosts.

        Raises:
            ValueError: `partition_axis` is "column", and the number of columns of a table is not
                divisible by the number of servers.
        """
        tables = placement.tables
        if self._places is not None:
            return [self._planned(table) for table in tables]
        places = []
        with_module = itertools.count()
        for table in tables:
            if table.module is not None:
                places.append(ShardedTable(TABLE, next(with_module) % self._servers))
                continue
            by_row = _divides_rows(table, cluster, self._axis, placement)
            places.append(ShardedTable(ROW if by_row else COLUMN, 0))
        return [divide(place, self._servers) for place in places]

    def _place(self, number: int, path: str) -> ShardedTable | None:
        """The place of a table; None: the plan has none for it."""
        assert self._places is not None
        if self._names is not None:
            number = self._names.index(path) if path in self._names else len(self._places)
        return self._places[number] if number < len(self._places) else None

    def _planned(self, table: RemoteTable) -> Division:
        place = self._place(table.number, table.path)
        assert place is not None  # `check` has compared the tables
        try:
            found = divide(place, self._servers)
        except ValueError as e:
            raise ValueError(f"{self._source}: {table.path}: {e}") from e
        if table.module is not None and len(found.servers) > 1:
            raise ValueError(
                f"{self._source}: {table.path} has a tower, whose module one server computes, "
                f"expected the way {TABLE}, got {place.way}"
            )
        rows, columns = table.shape
        if rows < found.row_parts or columns % found.column_parts:
            raise ValueError(
                f"{self._source}: {table.path} has {rows:,} x {columns} numbers, expected at least "
                f"{found.row_parts} rows and a multiple of {found.column_parts} columns for the "
                f"way {place.way}"
            )
        return found


def resources_of(cluster: Cluster, asynchronous: bool, steps_per_call: int) -> ClusterResources:
    """Returns the hosts of a cluster, for a prediction with typical costs.

    Args:
        cluster: The cluster.
        asynchronous: Whether workers do not wait for each other.
        steps_per_call: The steps of a call of TensorFlow.
    """
    return ClusterResources(
        EGRESS_PER_CORE,
        max(1, len(cluster.devices)),
        max(1, len(cluster.workers)),
        servers_in_workers=bool(cluster.own_servers),
        asynchronous=asynchronous,
        steps_per_call=steps_per_call,
    )


def sizes_of_tables(build: Callable[[], tf.keras.Model], features: Any) -> dict[str, Table]:
    """Counts what a batch has for each table of a model. The tables are not created.

    Args:
        build: Returns a new model.
        features: The features of a batch of B examples.

    Returns:
        The tables by "layer/weight", in the order in which layers create them, with the entries and
        the outputs of an example, and the distinct ids of the batch. A table without entries in
        the batch has one.
    """
    found = ParameterServerPlacement("", [], encoding.WireTypes(tf.float32, tf.float32), False)
    with placement_scope(found):
        model = build()
        found.forget_calls()
        model(features, training=False)
    batch = int(tf.shape(tf.nest.flatten(features, expand_composites=False)[0])[0])
    tables = {}
    for table in found.tables:
        rows, entries, distinct = _asked(table, found)
        input_dim, units = table.shape
        sent = units if table.module is None else table.module.columns
        tables[table.path] = Table(
            input_dim,
            units,
            max(entries, 1) / batch,
            min(max(distinct, 1), input_dim),
            outputs=max(1, round(rows * sent / batch)),
        )
    return tables


def _divides_rows(
    table: RemoteTable, cluster: ClusterResources, axis: str, placement: ParameterServerPlacement
) -> bool:
    """Tells whether a table is divided by row or else by column.

    "auto" is the axis by which a step with batches like the first one is predicted to be shorter;
    see `twml_ops.planning.sharding_axis`.
    """
    columns, servers = table.shape[1], cluster.servers
    if axis == COLUMN and columns % servers:
        raise ValueError(
            f'partition_axis="column" needs units that are divisible by the {servers} servers, got '
            f"{columns} units of {table.name}"
        )
    if axis != "auto":
        return axis == ROW
    if servers == 1 or columns % servers:
        return True
    job = _job(table, placement)
    return job is None or prefers_rows(job, cluster)


def _job(table: RemoteTable, placement: ParameterServerPlacement) -> Job | None:
    """Returns the job of multiplying the table with the first batch; None if it has no entries."""
    rows, entries, distinct = _asked(table, placement)
    if not entries:
        return None
    input_dim, units = table.shape
    return Job(
        (Table(input_dim, units, entries / rows, min(distinct, input_dim)),),
        rows,
        values=any(s.has_values for s in placement.batch_sizes if s.table is table),
        deduplicate=placement.deduplicate,
        activation_bytes=placement.wire.products.size,
        gradient_bytes=placement.wire.gradients.size,
    )


def _asked(table: RemoteTable, placement: ParameterServerPlacement) -> tuple[int, int, int]:
    """The rows of the products with a table, their entries, and their distinct ids."""
    sizes = [s for s in placement.batch_sizes if s.table is table]
    rows, entries, distinct = (
        sum(int(getattr(s, name)) for s in sizes)
        for name in ("num_rows", "num_entries", "num_distinct")
    )
    return rows, entries, distinct
