"""The model, its batches and the hosts: the inputs of a prediction."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from twml_ops.planning.cpu_costs import CpuCosts

FLOAT_BYTES = 4
BYTES_OF_NUMBER = {"float32": FLOAT_BYTES, "bfloat16": 2, "float16": 2, "int8": 1}
"""The types in which products and their gradients are sent, and the bytes of a number of each."""
_POWER = r"(?:(\d+)\^)?(\d+)"
_SIZE = re.compile(rf"{_POWER}x{_POWER}")


@dataclass(frozen=True)
class Table:
    """One sparse table and the entries of a batch that refer to it.

    Args:
        input_dim: N, rows of the table.
        units: D, columns of the table.
        entries: Mean number of entries of an example.
        unique: Number of distinct ids in one worker's batch; None: the expected number for
            uniformly distributed ids, which is the maximum.
        exchanged: Number of distinct ids of one peer's batches between two exchanges; None: as for
            `unique`, or `unique` in each batch, all different.
        hot_rows: Number of hot rows, which are assumed to be the first rows of the table.
        hot_share: Share of the entries that refer to the hot rows, 0 to 1.
        outputs: Numbers of an example that a server sends and gets the gradient of: F D for a
            vector of each of F fields, C for a tower that its server computes; None: D, for one sum
            of all rows.

    Raises:
        ValueError: A number is not positive, `unique`, `exchanged` or `hot_rows` is larger than
            `input_dim`, or `hot_share` is not between 0 and 1, or given without `hot_rows`.
    """

    input_dim: int
    units: int
    entries: float = 200.0
    unique: float | None = None
    exchanged: float | None = None
    hot_rows: int = 0
    hot_share: float = 0.0
    outputs: int | None = None

    def __post_init__(self) -> None:
        _positive(input_dim=self.input_dim, units=self.units, entries=self.entries)
        if not 0 <= self.hot_rows <= self.input_dim:
            raise ValueError(
                f"hot_rows must be 0 to the table's {self.input_dim:,} rows, got {self.hot_rows}"
            )
        if not 0 <= self.hot_share <= (1 if self.hot_rows else 0):
            raise ValueError(
                f"hot_share must be 0 to 1, and 0 without hot_rows, got {self.hot_share}"
            )
        if self.outputs is not None:
            _positive(outputs=self.outputs)
        for name in ("unique", "exchanged"):
            number = getattr(self, name)
            if number is None:
                continue
            _positive(**{name: number})
            if number > self.input_dim:
                raise ValueError(
                    f"{name} must be at most the table's {self.input_dim:,} rows, got {number:,.0f}"
                )

    @staticmethod
    def parse(
        text: str,
        entries: float = 200.0,
        unique: float | None = None,
        exchanged: float | None = None,
    ) -> Table:
        """Parses a size such as "524288x128" or "2^19x128", rows by columns.

        Args:
            text: The size.
            entries: See `Table`.
            unique: See `Table`.
            exchanged: See `Table`.

        Returns:
            The table.

        Raises:
            ValueError: The text has another format, or the size is out of range.
        """
        found = _SIZE.fullmatch(text.strip().lower().replace("×", "x"))
        if not found:
            raise ValueError(f"table must be ROWSxUNITS such as 2^19x128, got {text!r}")
        a, b, c, d = found.groups()
        return Table(_power(a, b), _power(c, d), entries, unique, exchanged)

    @property
    def bytes(self) -> int:
        """Size of the float32 table, in bytes."""
        return self.input_dim * self.units * FLOAT_BYTES

    @property
    def sent(self) -> int:
        """Numbers of an example that a server sends, `outputs` or D."""
        return self.units if self.outputs is None else self.outputs

    def ids(self, batch: int) -> float:
        """Returns the number of entries of a batch.

        Args:
            batch: B, examples in the batch.

        Returns:
            K = B times the entries of an example.
        """
        return batch * self.entries

    def rows(self, batch: int) -> float:
        """Returns the number of distinct ids of a batch.

        Args:
            batch: B, examples in the batch.

        Returns:
            `unique`, but at most K; or without it N (1 - (1 - 1 / N)^K), the expected number for
            uniformly distributed ids.
        """
        k = self.ids(batch)
        return self._uniform(k) if self.unique is None else min(self.unique, k)

    def exchanged_rows(self, batch: int, every: int) -> float:
        """Returns the number of distinct ids of the batches between two exchanges of peers.

        Args:
            batch: B, examples in a batch.
            every: E, batches between two exchanges.

        Returns:
            `exchanged`, but at most E K; or without it the expected number for uniformly
            distributed ids, or E `unique`, but at most N.
        """
        k = every * self.ids(batch)
        if self.exchanged is not None:
            return min(self.exchanged, k)
        if self.unique is not None:
            return min(every * self.rows(batch), self.input_dim)
        return self._uniform(k)

    def _uniform(self, k: float) -> float:
        n = self.input_dim
        return min(k, -n * math.expm1(k * math.log1p(-1 / n))) if n > 1 else 1.0


@dataclass(frozen=True)
class Job:
    """A model and its batches.

    Args:
        tables: The sparse tables.
        batch: B, examples in one worker's batch.
        values: Whether entries have values. If not, all values are 1 and none are sent.
        deduplicate: Whether a hybrid strategy sends an id that occurs several times in a batch once
            if that is smaller.
        dense: Number of weights of the dense part of the model.
        activation_bytes: Bytes of one number of a product: 4, or 2 in half precision, or 1 with a
            scale of 4 bytes for each row.
        gradient_bytes: Bytes of one number of the gradient of a product, as those; None:
            `activation_bytes`.
        slots: Numbers that the optimizer stores for each weight of a table: 0 for SGD, 1 for
            Adagrad, 2 for Adam.
        every: E, batches that a peer trains on between two exchanges.

    Raises:
        ValueError: There are no tables, or a number is out of range.
    """

    tables: tuple[Table, ...]
    batch: int
    values: bool = False
    deduplicate: bool = True
    dense: int = 0
    activation_bytes: int = FLOAT_BYTES
    gradient_bytes: int | None = None
    slots: int = 0
    every: int = 16

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError("tables must name at least one table, got none")
        _positive(batch=self.batch, every=self.every)
        _not_negative(dense=self.dense, slots=self.slots)
        for name in ("activation_bytes", "gradient_bytes"):
            number = getattr(self, name)
            if name == "gradient_bytes" and number is None:
                continue
            if number not in BYTES_OF_NUMBER.values():
                raise ValueError(f"{name} must be 1, 2 or 4, got {number}")

    def bytes_of_products(self, numbers: float, rows: float) -> float:
        """Computes the bytes of products in messages.

        Args:
            numbers: Number of their columns times that of their rows.
            rows: Number of rows, of all tables together.

        Returns:
            Bytes.
        """
        return _encoded(numbers, rows, self.activation_bytes)

    def bytes_of_gradients(self, numbers: float, rows: float) -> float:
        """Computes the bytes of gradients of products in messages.

        Args:
            numbers: Number of their columns times that of their rows.
            rows: Number of rows, of all tables together.

        Returns:
            Bytes.
        """
        return _encoded(numbers, rows, self.gradient_bytes or self.activation_bytes)

    @property
    def table_bytes(self) -> int:
        """Size of all tables, in bytes."""
        return sum(t.bytes for t in self.tables)

    @property
    def stored_bytes(self) -> int:
        """Size of all tables and their optimizer slots, in bytes."""
        return self.table_bytes * (1 + self.slots)


@dataclass(frozen=True)
class ClusterResources:
    """The hosts of a cluster, their network, and how they train together.

    Args:
        egress: The most that a host can send, in bytes per second. What it receives is not limited.
        servers: S, the number of hosts with shards of the tables.
        workers: W, the number of hosts that read batches and hold the dense part.
        cores: c, CPU cores of a host; less than 1 for a share of one.
        servers_in_workers: Whether servers run in the processes of workers, on their hosts, as
            evenly as possible.
        asynchronous: Whether workers with servers do not wait for each other. A step is then the
            mean time in which each worker trains on one batch.
        steps_per_call: k, `steps_per_execution` of the trainer. In all steps of a call but one, a
            worker packs the entries of a batch while the servers work.
        burst: b, seconds of CPU time that a host with less than one core may use at full speed in
            each period of its quota, such as `cpu.cfs_quota_us` of a control group; 0 for a host
            whose cores are slow.

    Raises:
        ValueError: A number is not positive, or `burst` is negative.
    """

    egress: float
    servers: int = 1
    workers: int = 1
    cores: float = 1.0
    servers_in_workers: bool = False
    asynchronous: bool = False
    steps_per_call: int = 1
    burst: float = 0.0

    def __post_init__(self) -> None:
        for name in ("egress", "servers", "workers", "cores", "steps_per_call"):
            _positive(**{name: getattr(self, name)})
        if not self.burst >= 0:
            raise ValueError(f"burst must not be negative, got {self.burst}")

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return self.workers if self.servers_in_workers else self.workers + self.servers

    @property
    def servers_per_host(self) -> int:
        """The largest number of servers on one host."""
        return math.ceil(self.servers / self.workers) if self.servers_in_workers else 1

    @property
    def remote_share(self) -> float:
        """Share of the pairs of a worker and a server that are on different hosts."""
        return 1 - 1 / self.workers if self.servers_in_workers else 1.0


@dataclass(frozen=True)
class Compute:
    """The costs of a step that do not depend on the network.

    Args:
        sparse: Seconds on one core for forward pass, backward pass and update of the sparse layers,
            for one worker's batch on one host.
        dense: Seconds on one core for the rest of the model and the training loop, for one batch on
            one host.
        latency: Seconds until an empty request is answered.
        transport: The most that the software of a host can send, in bytes per second, on any
            network; None: no limit.
        costs: What the parts of a step cost; None: nothing. `sparse` and `dense` are then what the
            model needs beside these parts.

    Raises:
        ValueError: A number is negative, or `transport` is not positive.
    """

    sparse: float = 0.0
    dense: float = 0.0
    latency: float = 0.0
    transport: float | None = None
    costs: CpuCosts | None = None

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


def _encoded(numbers: float, rows: float, bytes_of_number: int) -> float:
    return numbers * bytes_of_number + (rows * FLOAT_BYTES if bytes_of_number == 1 else 0)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive, got {value}")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name} must not be negative, got {value}")
