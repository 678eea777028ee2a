"""A plan of many tables: for each one of the ways to divide it over servers, and its file."""

from __future__ import annotations

import json
import math
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
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
        seconds, stored = (_numbers(content, key, (int, float)) for key in ("seconds", "bytes"))
        entries = content["tables"]
        names = tuple(entry["name"] for entry in entries)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"the names of tables must be strings, got {names!r:.100}")
        listed = [_numbers(entry, "servers", int) for entry in entries]
        tables = tuple(
            ShardedTable(str(entry["way"]), servers[0])
            for entry, servers in zip(entries, listed, strict=True)
        )
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise ValueError(f"{path}: is no plan of `twml-ops plan --out-plan`: {e!r:.200}") from e
    for name, table, servers in zip(names, tables, listed, strict=True):
        if table.way not in WAYS:
            raise ValueError(
                f"{path}: the way of {name} must be one of {', '.join(WAYS)}, got {table.way!r}"
            )
        expected = table.servers(len(seconds))
        if len(stored) != len(seconds) or servers != expected:
            raise ValueError(
                f"{path}: {name} must be on the servers {list(expected)} of {len(seconds)} by "
                f"{table.way}, got {list(servers)!r:.200}"
            )
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: two tables have the same name, got {sorted(names)!r:.200}")
    return names, ShardingPlan(tables, seconds, stored)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a file, in which no key may be twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"an object has a key twice, got {[key for key, _ in pairs]!r:.100}")
    return found


def _numbers(content: Any, key: str, kind: Any) -> tuple[Any, ...]:
    """A list of finite numbers, at least one, that are not negative."""
    found = content[key]
    if not isinstance(found, list) or not found:
        raise TypeError(f"{key} must be a list with at least one number, got {found!r:.100}")
    for number in found:
        if isinstance(number, bool) or not isinstance(number, kind) or not 0 <= number < math.inf:
            what = "integers" if kind is int else "finite numbers"
            raise ValueError(f"{key} must be {what} from 0 on, got {number!r:.100}")
    return tuple(found)
