"""What is to be trained, on which hosts: the arguments of the plan."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

FLOAT_BYTES = 4
_POWER = r"(?:(\d+)\^)?(\d+)"
_SIZE = re.compile(rf"{_POWER}x{_POWER}")


@dataclass(frozen=True)
class Table:
    """One sparse table and what a batch asks of it.

    Attributes:
        input_dim: N, rows of the table.
        units: D, columns of the table.
        entries: entries of one example.
        unique: distinct ids of one worker's batch; None: what uniformly drawn ids give, which is
            the most.
    """

    input_dim: int
    units: int
    entries: float = 200.0
    unique: float | None = None

    def __post_init__(self) -> None:
        _positive(input_dim=self.input_dim, units=self.units, entries=self.entries)
        if self.unique is not None:
            _positive(unique=self.unique)
            if self.unique > self.input_dim:
                raise ValueError(
                    f"unique must be at most the table's {self.input_dim:,} rows, "
                    f"got {self.unique:,.0f}"
                )

    @staticmethod
    def parse(text: str, entries: float = 200.0, unique: float | None = None) -> Table:
        """`"524288x128"` or `"2^19x128"`: rows by columns.

        Raises:
            ValueError: for any other text.
        """
        found = _SIZE.fullmatch(text.strip().lower().replace("×", "x"))
        if not found:
            raise ValueError(f"table must be ROWSxUNITS such as 2^19x128, got {text!r}")
        a, b, c, d = found.groups()
        return Table(_power(a, b), _power(c, d), entries, unique)

    @property
    def bytes(self) -> int:
        """Of the float32 table."""
        return self.input_dim * self.units * FLOAT_BYTES

    def ids(self, batch: int) -> float:
        """K, the entries of a batch."""
        return batch * self.entries

    def rows(self, batch: int) -> float:
        """Distinct ids of a batch: as given, or expected where ids are drawn uniformly."""
        k, n = self.ids(batch), self.input_dim
        if self.unique is not None:
            return min(self.unique, k)
        return min(k, -n * math.expm1(k * math.log1p(-1 / n))) if n > 1 else 1.0


@dataclass(frozen=True)
class Job:
    """A model and its batches.

    Attributes:
        tables: the sparse tables.
        batch: B, examples in one worker's batch.
        values: whether entries have values; without, all are 1 and none travel.
        deduplicate: whether a hybrid sends an id that a batch repeats once, where that is less.
        dense: weights of the dense part behind the tables.
        activation_bytes: of one number of an activation or its gradient: 4, or 2 in half precision.
        slots: numbers an optimizer keeps for each weight of a table: 0 SGD, 1 Adagrad, 2 Adam.
    """

    tables: tuple[Table, ...]
    batch: int
    values: bool = False
    deduplicate: bool = True
    dense: int = 0
    activation_bytes: int = FLOAT_BYTES
    slots: int = 0

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError("tables must name at least one table, got none")
        _positive(batch=self.batch)
        _not_negative(dense=self.dense, slots=self.slots)
        if self.activation_bytes not in (2, FLOAT_BYTES):
            raise ValueError(f"activation_bytes must be 2 or 4, got {self.activation_bytes}")

    @property
    def table_bytes(self) -> int:
        """Of all tables."""
        return sum(t.bytes for t in self.tables)

    @property
    def stored_bytes(self) -> int:
        """Of all tables and their optimizer slots."""
        return self.table_bytes * (1 + self.slots)


@dataclass(frozen=True)
class ClusterResources:
    """The hosts. Each sends at most `egress`; what it receives is not limited.

    Attributes:
        egress: bytes a second.
        servers: S, hosts with parts of the tables.
        workers: W, hosts that read batches and hold the dense part.
    """

    egress: float
    servers: int = 1
    workers: int = 1

    def __post_init__(self) -> None:
        _positive(egress=self.egress, servers=self.servers, workers=self.workers)


@dataclass(frozen=True)
class Compute:
    """What no network changes: seconds of one worker's batch, each on one host, and software.

    Attributes:
        sparse: forward, backward and update of the sparse layers.
        dense: the rest of the model, and what the loop costs.
        latency: of one exchange: how long an empty request takes to be answered.
        transport: bytes a second that a host's software can send, whatever its network; None: any.
    """

    sparse: float = 0.0
    dense: float = 0.0
    latency: float = 0.0
    transport: float | None = None

    def __post_init__(self) -> None:
        _not_negative(sparse=self.sparse, dense=self.dense, latency=self.latency)
        if self.transport is not None:
            _positive(transport=self.transport)


def _power(base: str | None, exponent: str) -> int:
    if base is None:
        return int(exponent[:20])
    if int(exponent) > 62:
        raise ValueError(f"table must have at most 2^62 rows, got {base}^{exponent}")
    return int(base) ** int(exponent)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive, got {value}")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name} must not be negative, got {value}")
