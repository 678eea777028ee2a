"""The weights of a Keras model as parts of messages: dense ones whole, tables by changed rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import tensorflow as tf

from twml_ops import _keras
from twml_ops.checkpoint import NamedVariable, variables_of
from twml_ops.layers import DynamicLookup, MaxNorm
from twml_ops.ops import ChangedRows
from twml_ops.ops._tape import tf_variable
from twml_ops.ops.changed_rows import mark_rows
from twml_ops.peers.messages import Part, dtype_of
from twml_ops.peers.reduce import Update, reduce_dense, reduce_rows
from twml_ops.placement import TieredPlacement, placement_of

What = Literal["weights", "gradients"]
_PIECE_ROWS = 1 << 16


class Shared(Protocol):
    """A weight that ranks exchange."""

    part: Part

    def start(self, broadcast: Any) -> None:
        """Gives the variable the value of the first rank."""

    def outgoing(self) -> Any:
        """What the next message has of the weight: an array, or (ids, rows)."""

    def merge(self, rank: int, iteration: int, received: Sequence[Update]) -> None:
        """Merges what other ranks sent with what this rank sent last."""

    def give_back(self) -> None:
        """Lets the next message have what was in the last one, which was lost."""


def shared_weights(
    model: tf.keras.Model, what: What, wire_dtype: str | None, max_rows: int | None
) -> list[Shared]:
    """The weights of a model that ranks exchange, in the same order on all ranks.

    These are the trainable weights, the maxima of `MaxNorm`, and floating-point states of Keras'
    own layers (`BatchNormalization`). All other states are not exchanged.

    Args:
        model: The compiled model.
        what: See `PeerAveraging`.
        wire_dtype: Type in which values travel; None: that of the weight.
        max_rows: Largest number of rows of a table in a message; None: all.

    Returns:
        The weights.

    Raises:
        ValueError: A table is divided among replicas, its rows are in a file, or they belong to
            dynamic ids, to which each rank would give other rows.
    """
    if not _keras.is_built(model.optimizer):  # `variables_of` finds tables by the slots
        model.optimizer.build(model.trainable_variables)
    named: dict[int, NamedVariable] = {id(v.variable): v for v in variables_of(model)}
    found: list[Shared] = []
    for layer in (model, *_keras.all_layers(model)):
        if isinstance(layer, DynamicLookup):
            raise ValueError(
                "peer-to-peer training needs rows that have the same id on all ranks, got the "
                f"layer '{layer.name}', a DynamicLookup: train in one process"
            )
        trainable = {id(v) for v in getattr(layer, "trainable_variables", ())}
        for weight in _keras.direct_variables(layer):
            place = placement_of(weight)
            if place.is_sharded or isinstance(place, TieredPlacement):
                raise ValueError(
                    f"peer-to-peer training needs tables in the memory of one device, got "
                    f"{weight.name} of layer '{layer.name}' in {type(place).__name__}"
                )
            variable = tf_variable(weight)
            entry = named.get(id(variable))
            if entry is None or not variable.dtype.is_floating:
                continue
            wire = dtype_of(wire_dtype or variable.dtype.name)
            if id(weight) in trainable:
                if entry.table and entry.table == entry.name:
                    found.append(SharedTable(variable, wire, what, max_rows))
                else:
                    found.append(SharedArray(variable, wire, what))
            elif isinstance(layer, MaxNorm):
                found.append(SharedMaxima(variable, wire, "weights"))
            elif not type(layer).__module__.startswith("twml_ops"):
                found.append(SharedArray(variable, wire, "weights"))
    return found


class SharedArray:
    """A weight that travels as a whole.

    Args:
        variable: The weight.
        wire: Type in which it travels.
        what: See `PeerAveraging`.

    Attributes:
        part: The part of messages that has the weight.
    """

    def __init__(self, variable: tf.Variable, wire: np.dtype[Any], what: What) -> None:
        self.part = Part(tuple(variable.shape) or (1,), wire, sparse=False)
        self._variable, self._what = variable, what

    def start(self, broadcast: Any) -> None:
        """See `Shared.start`."""
        value = self._read()
        broadcast(value)
        self._write(value)
        self._base = value.copy() if self._what == "gradients" else None

    def outgoing(self) -> np.ndarray:
        """See `Shared.outgoing`."""
        self._sent = self._read()
        if self._base is not None:
            self._sent -= self._base
        return self._sent

    def merge(self, rank: int, iteration: int, received: Sequence[Update]) -> None:
        """See `Shared.merge`."""
        merged = self._reduce(Update(rank, iteration, None, self._sent), received)
        if self._base is not None:
            self._base += merged
            merged = self._base
        self._write(merged)

    def give_back(self) -> None:
        """See `Shared.give_back`: every message has the whole weight."""

    def _reduce(self, own: Update, received: Sequence[Update]) -> np.ndarray:
        return reduce_dense("average_with_own", own, received) if received else own.values

    def _read(self) -> np.ndarray:
        return np.array(self._variable.read_value().numpy()).reshape(self.part.shape)

    def _write(self, value: np.ndarray) -> None:
        with tf.device(self._variable.device):
            self._variable.assign(value.reshape(self._variable.shape))


class SharedMaxima(SharedArray):
    """A state whose merged value is the largest one of all ranks."""

    def _reduce(self, own: Update, received: Sequence[Update]) -> np.ndarray:
        values = [own.values, *(u.values.astype(own.values.dtype) for u in received)]
        return np.maximum.reduce(values)


class SharedTable:
    """A table of which the rows that changed since the last message travel.

    Args:
        variable: The table [N, D].
        wire: Type in which rows travel.
        what: See `PeerAveraging`.
        max_rows: Largest number of rows in a message; None: all. Others follow in later messages.

    Attributes:
        part: The part of messages that has the rows.
    """

    def __init__(
        self, variable: tf.Variable, wire: np.dtype[Any], what: What, max_rows: int | None
    ) -> None:
        self.part = Part(tuple(variable.shape), wire, sparse=True)
        self._variable, self._what = variable, what
        self._rows = int(variable.shape[0])
        self._max_rows = min(max_rows or self._rows, self._rows)
        self._changed = ChangedRows([variable])
        self._waiting = np.zeros(0, np.int64)
        self._sent = self._waiting, np.zeros((0, *self.part.shape[1:]), np.float32)

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """The rows `ids` as they are now."""
        with tf.device(self._variable.device):
            rows = tf.raw_ops.ResourceGather(
                resource=self._variable.handle, indices=ids, dtype=self._variable.dtype
            )
        return np.array(rows.numpy())

    def start(self, broadcast: Any) -> None:
        """See `Shared.start`."""
        keep = self._what == "gradients"
        shape = self._variable.shape
        self._base = np.empty(shape, self._variable.dtype.as_numpy_dtype) if keep else None
        for begin in range(0, self._rows, _PIECE_ROWS):
            ids = np.arange(begin, min(begin + _PIECE_ROWS, self._rows))
            rows = self[ids]
            broadcast(rows)
            self._write(ids, rows)
            if self._base is not None:
                self._base[ids] = rows
        self._changed.take().keep()

    def outgoing(self) -> tuple[np.ndarray, np.ndarray]:
        """See `Shared.outgoing`."""
        taken = self._changed.take()
        taken.keep()
        changed = np.arange(self._rows) if taken.ids is None else taken.ids
        # Rows that have waited come first.
        late = np.setdiff1d(changed, self._waiting, assume_unique=True)
        due = np.concatenate([self._waiting, late])
        ids, self._waiting = np.sort(due[: self._max_rows]), due[self._max_rows :]
        self._sent = ids, self._news(ids, self[ids])
        return self._sent

    def merge(self, rank: int, iteration: int, received: Sequence[Update]) -> None:
        """See `Shared.merge`; a row is merged over the ranks that sent it."""
        mine, news = self._sent
        if received:
            own = Update(rank, iteration, mine, news)
            ids, rows = reduce_rows("average_with_own", own, received, _Sent(self, mine, news))
            if self._base is not None:
                rows = self._base[ids] + rows
                self._base[ids] = rows
            self._write(ids, rows)
            # What was received is not sent on.
            self._changed.take().keep()
            mine = np.setdiff1d(mine, ids, assume_unique=True)
        if self._base is not None:
            self._base[mine] = self[mine]

    def give_back(self) -> None:
        """See `Shared.give_back`."""
        self._waiting = np.union1d(self._waiting, self._sent[0])

    def _news(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return rows if self._base is None else rows - self._base[ids]

    def _write(self, ids: np.ndarray, rows: np.ndarray) -> None:
        with tf.device(self._variable.device):
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._variable.handle,
                indices=ids,
                updates=tf.constant(rows, self._variable.dtype),
            )
        mark_rows(self._variable, ids)


class _Sent:
    """The rows that a rank sent last, indexed by id; rows of other ids are not used."""

    def __init__(self, table: SharedTable, ids: np.ndarray, rows: np.ndarray) -> None:
        self._width, self._ids, self._rows = table.part.shape[1:], ids, rows

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        found = np.zeros((len(ids), *self._width), self._rows.dtype)
        _, at, of_mine = np.intersect1d(ids, self._ids, assume_unique=True, return_indices=True)
        found[at] = self._rows[of_mine]
        return found
