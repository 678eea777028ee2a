"""The choice of the axis by which a table is sharded over servers."""

from __future__ import annotations

from twml_ops.distribute.hybrid.parameter_server_placement import ParameterServerPlacement
from twml_ops.distribute.hybrid.remote_table import RemoteTable

_ID_BYTES, _VALUE_BYTES = 4, 4


def shards_by_row(
    table: RemoteTable, servers: int, axis: str, placement: ParameterServerPlacement
) -> bool:
    """Tells whether to shard a table by row or else by column.

    Args:
        table: The table.
        servers: The number of servers.
        axis: "row", "column", or "auto": by which a worker sends and receives fewer bytes with the
            first batch.
        placement: The placement of the table, which knows the size of the first batch.

    Returns:
        True for rows.

    Raises:
        ValueError: `axis` is "column", and the number of columns is not divisible by `servers`.
    """
    columns = table.shape[1]
    if axis == "column" and columns % servers:
        raise ValueError(
            f'partition_axis="column" needs units that are divisible by the {servers} servers, got '
            f"{columns} units of {table.name}"
        )
    if axis != "auto":
        return axis == "row"
    if servers == 1 or columns % servers:
        return True
    sizes = [s for s in placement.batch_sizes if s.table is table]
    entries_bytes = sum(
        int(s.num_entries) * (_ID_BYTES + (_VALUE_BYTES if s.has_values else 0)) for s in sizes
    )
    rows = sum(int(s.num_rows) for s in sizes)
    products_bytes = rows * columns * placement.wire_dtype.size
    # By row, an entry is sent to one server, and products and gradients of full width are sent
    # from and to each server. By column, it is the other way round.
    by_row = entries_bytes + 2 * servers * products_bytes
    by_column = servers * entries_bytes + 2 * products_bytes
    return by_row <= by_column
