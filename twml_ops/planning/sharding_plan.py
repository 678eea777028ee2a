"""A plan of many tables: for each one of the ways to divide it over servers, and its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE, ROW, COLUMN = "table", "row", "column"
REPLICATED, COLUMN_ROW = "replicated", "column-row"
WAYS = (TABLE, ROW, COLUMN, REPLICATED, COLUMN_ROW)
"""The ways: one server has the table, rows p, p + P, ..., ranges of columns, a copy on each worker
(as of dense weights), or ranges of columns whose rows are divided too."""


def grid(way: str, servers: int) -> tuple[int, int]:
    """Returns into how many parts the rows and the columns of a table are divided.

    Part i of the R · G parts has rows i mod R, i mod R + R, ... of range i // R of the columns.

    Args:
        way: One of `WAYS`, but not "replicated".
        servers: The number of servers.

    Returns:
        R and G. "column-row" has the smallest G > 1 for which servers / G is an integer > 1.

    Raises:
        ValueError: The way is not possible with this number of servers.
    """
    if way == COLUMN_ROW:
        groups = next((g for g in range(2, servers) if servers % g == 0), 0)
        if not groups:
            raise ValueError(
                f"{COLUMN_ROW} needs 4 servers or more, not a prime number, got {servers}"
            )
        return servers // groups, groups
    if way == REPLICATED:
        raise ValueError(f"the parts of a table must not be copies, got the way {REPLICATED}")
    return {TABLE: (1, 1), ROW: (servers, 1), COLUMN: (1, servers)}[way]


@dataclass(frozen=True)
class ShardedTable:
    """Where one table goes.

    Attributes:
        way: One of `WAYS`.
        first: The server of the first part; part i is on server (first + i) modulo the servers.
    """

    way: str
    first: int

    def servers(self, count: int) -> tuple[int, ...]:
        """The servers of the parts, in the order of the parts.

        Args:
            count: Number of all servers.

        Returns:
            One server for "table", all of them for the other ways. The values that the copies of
            "replicated" begin a step with are on any one of them.
        """
        parts = 1 if self.way == TABLE else count
        return tuple((self.first + i) % count for i in range(parts))


@dataclass(frozen=True)
class ShardingPlan:
    """Where all tables go, and what follows from it.

    Attributes:
        tables: For each table of the job.
        seconds: For each server, the predicted duration of a step that waits for this server alone,
            without the parts of a step that are the same in all plans.
        bytes: For each server, bytes of its tables with the optimizer's slots.
    """

    tables: tuple[ShardedTable, ...]
    seconds: tuple[float, ...]
    bytes: tuple[float, ...]

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """The content of a file of the plan, as `twml-ops plan --out-plan` writes it.

        Args:
            names: The names of the tables, in the order of the plan.

        Returns:
            An object with "tables", each with "name", "way" and "servers"; "seconds" and "bytes".
        """
        servers = len(self.seconds)
        return {
            "tables": [
                {"name": name, "way": table.way, "servers": list(table.servers(servers))}
                for name, table in zip(names, self.tables, strict=True)
            ],
            "seconds": list(self.seconds),
            "bytes": list(self.bytes),
        }


def read_plan(path: Path) -> tuple[tuple[str, ...], ShardingPlan]:
    """Reads a plan that `twml-ops plan --out-plan` has written.

    Args:
        path: The file.

    Returns:
        The names of the tables, and the plan.

    Raises:
        ValueError: The file has another content.
        OSError: It cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        seconds, stored = (tuple(map(float, content[key])) for key in ("seconds", "bytes"))
        names = tuple(str(entry["name"]) for entry in content["tables"])
        tables = tuple(
            ShardedTable(str(entry["way"]), int(entry["servers"][0])) for entry in content["tables"]
        )
        listed = [list(map(int, entry["servers"])) for entry in content["tables"]]
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise ValueError(f"{path}: is no plan of `twml-ops plan --out-plan`: {e!r:.200}") from e
    for name, table, servers in zip(names, tables, listed, strict=True):
        if table.way not in WAYS:
            raise ValueError(
                f"{path}: the way of {name} must be one of {', '.join(WAYS)}, got {table.way!r}"
            )
        expected = list(table.servers(max(1, len(seconds))))
        if not seconds or len(stored) != len(seconds) or servers != expected:
            raise ValueError(
                f"{path}: {name} must be on the servers {expected} of {len(seconds)} by "
                f"{table.way}, got {servers}"
            )
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: two tables have the same name, got {sorted(names)!r:.200}")
    return names, ShardingPlan(tables, seconds, stored)
