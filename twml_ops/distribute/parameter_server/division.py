"""How a table is divided into parts, each on another server, and how a whole is put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.planning import ShardedTable
from twml_ops.planning.sharding_plan import TABLE, grid


@dataclasses.dataclass(frozen=True)
class Division:
    """The parts of a table [N, D], R of the rows times G of the columns.

    Part i has the rows r, r + R, r + 2 R, ... with r = i mod R, and the range i // R of G equal
    ranges of columns.

    Attributes:
        place: The way and the first server, as a plan has them.
        row_parts: R.
        column_parts: G.
        servers: The number of the server of each part. A server has at most one part.
    """

    place: ShardedTable
    row_parts: int
    column_parts: int
    servers: tuple[int, ...]

    def part_on(self, server: int) -> int | None:
        """Returns the number of the part on a server; None if it has none."""
        return self.servers.index(server) if server in self.servers else None

    def row_part(self, part: int) -> int:
        """Returns which of the R parts of the rows a part has."""
        return part % self.row_parts

    def shape(self, part: int, rows: int, columns: int) -> tuple[int, int]:
        """Returns the shape of a part of a table [rows, columns]."""
        first = self.row_part(part)
        return -(-(rows - first) // self.row_parts), columns // self.column_parts

    def columns_by_part(self, values: tf.Tensor) -> list[tf.Tensor]:
        """Returns the columns of each part from values [.., D]."""
        ranges = [values] if self.column_parts == 1 else tf.split(values, self.column_parts, axis=1)
        return [ranges[i // self.row_parts] for i in range(len(self.servers))]

    def rows_on(self, part: int, begin: int, end: int) -> tuple[int, int]:
        """Returns which rows of a part, from one to before another, are in [begin, end)."""
        row = self.row_part(part)
        return -(-(begin - row) // self.row_parts), -(-(end - row) // self.row_parts)

    def slice(self, whole: tf.Tensor, part: int, rank: int, begin: int = 0) -> tf.Tensor:
        """Returns what a part has of a whole, or of neighboring rows of it.

        Args:
            whole: [N, D], or [N] of a slot with one number a row.
            part: The number of the part.
            rank: The number of dimensions of `whole`, whose shape is not asked for: it may be on a
                server.
            begin: The first row of `whole` in the table.
        """
        if self.row_parts > 1:
            whole = whole[(self.row_part(part) - begin) % self.row_parts :: self.row_parts]
        return self.columns_by_part(whole)[part] if rank > 1 else whole

    def join(self, by_part: Sequence[Any], add: Callable[[Sequence[Any]], Any] = tf.add_n) -> Any:
        """Returns the product with a table, [B, D], from the products with its parts.

        Args:
            by_part: The products with the parts.
            add: Adds the products of the parts of the rows.
        """
        groups = self._by_columns(by_part)
        products = [add(group) if len(group) > 1 else group[0] for group in groups]
        return products[0] if len(products) == 1 else tf.concat(products, axis=1)

    def merge(self, parts: Sequence[tf.Tensor], shape: Sequence[Any], begin: int = 0) -> tf.Tensor:
        """Returns a whole, or neighboring rows of it, from all parts.

        Args:
            parts: The parts of a table or of a slot, or their rows of `rows_on`, in their order.
            shape: The shape of the result. A slot with one number a row becomes the mean over the
                ranges of columns.
            begin: The first row of the result in the whole.
        """
        first = begin % self.row_parts
        groups = [
            _interleave([*group[first:], *group[:first]], shape[0])
            for group in self._by_columns(parts)
        ]
        if len(groups) == 1:
            return groups[0]
        return tf.concat(groups, axis=1) if len(shape) > 1 else tf.add_n(groups) / len(groups)

    def merge_entries(
        self, positions: Sequence[tf.Tensor], by_part: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Returns a number for each entry, [K], from what each part adds to it.

        Args:
            positions: For each of the R parts of the rows, the positions of its entries.
            by_part: For each part, the numbers of its entries.
        """
        groups = [
            tf.dynamic_stitch(positions, group) if len(group) > 1 else tf.identity(group[0])
            for group in self._by_columns(by_part)
        ]
        return groups[0] if len(groups) == 1 else tf.add_n(groups)

    def _by_columns(self, by_part: Sequence[Any]) -> list[Sequence[Any]]:
        return [
            by_part[i : i + self.row_parts] for i in range(0, len(self.servers), self.row_parts)
        ]


def divide(place: ShardedTable, servers: int) -> Division:
    """Returns the division of a table.

    Args:
        place: The way and the first server.
        servers: The number of all servers.

    Raises:
        ValueError: The way is not possible with this number of servers.
    """
    return Division(place, *grid(place.way, servers), place.servers(servers))


def divide_as_described(description: Mapping[str, Any], servers: int) -> Division:
    """Returns the division of a table that the manifest of a checkpoint describes.

    Args:
        description: What `checkpoint.describe` has returned.
        servers: The number of servers that wrote the checkpoint.
    """
    if "by_row" in description:  # of a version that knew two ways
        return divide(ShardedTable("row" if description["by_row"] else "column", 0), servers)
    return divide(ShardedTable(description["way"], description["first"]), servers)


WHOLE = divide(ShardedTable(TABLE, 0), 1)
"""The division of a table that is not on servers yet."""


def _interleave(parts: Sequence[tf.Tensor], rows: int) -> tf.Tensor:
    """Returns [rows, ...] from its rows 0, R, ..., its rows 1, R + 1, ..., and so on."""
    count = len(parts)
    if count == 1:
        return parts[0]
    order = tf.concat([tf.range(r, rows, count) for r in range(count)], axis=0)
    return tf.gather(tf.concat(parts, axis=0), tf.math.invert_permutation(order))
