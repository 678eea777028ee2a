"""The choice of the axis by which a table is sharded over servers."""

from __future__ import annotations

from twml_ops.distribute.hybrid.parameter_server_placement import ParameterServerPlacement
from twml_ops.distribute.hybrid.remote_table import RemoteTable
from twml_ops.planning import ClusterResources, Job, Table
from twml_ops.planning.sharding_axis import prefers_rows


def shards_by_row(
    table: RemoteTable, cluster: ClusterResources, axis: str, placement: ParameterServerPlacement
) -> bool:
    """Tells whether to shard a table by row or else by column.

    Args:
        table: The table.
        cluster: The hosts.
        axis: "row", "column", or "auto": by which a step with batches like the first one is
            predicted to be shorter; see `twml_ops.planning.sharding_axis`.
        placement: The placement of the table, which knows the size of the first batch.

    Returns:
        True for rows.

    Raises:
        ValueError: `axis` is "column", and the number of columns is not divisible by the number of
            servers.
    """
    columns, servers = table.shape[1], cluster.servers
    if axis == "column" and columns % servers:
        raise ValueError(
            f'partition_axis="column" needs units that are divisible by the {servers} servers, got '
            f"{columns} units of {table.name}"
        )
    if axis != "auto":
        return axis == "row"
    if servers == 1 or columns % servers:
        return True
    job = _job(table, placement)
    return job is None or prefers_rows(job, cluster)


def _job(table: RemoteTable, placement: ParameterServerPlacement) -> Job | None:
    """The products of the table in the first batch; None if there are no entries."""
    sizes = [s for s in placement.batch_sizes if s.table is table]
    rows, entries, distinct = (
        sum(int(getattr(s, name)) for s in sizes)
        for name in ("num_rows", "num_entries", "num_distinct")
    )
    if not entries:
        return None
    input_dim, units = table.shape
    return Job(
        (Table(input_dim, units, entries / rows, min(distinct, input_dim)),),
        rows,
        values=any(s.has_values for s in sizes),
        deduplicate=placement.deduplicate,
        activation_bytes=placement.wire_dtype.size,
    )
