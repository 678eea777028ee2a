"""The base of layers with tables, and how models are saved whose tables are in files."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import h5py
import numpy as np
import tensorflow as tf

from twml_ops import ops, placement
from twml_ops._batch import SparseBatch
from twml_ops._keras import KERAS_3, direct_variables
from twml_ops._publish import new_file
from twml_ops.ops._library import library
from twml_ops.placement.tiered import tiered_placement_of
from twml_ops.placement.whole_values import MARK, value_in_file, written_later

OUT_OF_RANGE = ("error", "wrap")
_WEIGHTS = "model.weights.h5"  # in a .keras file


class LookupTable(NamedTuple):
    """A table whose products another system may look up; see `Placement.looked_up`.

    Attributes:
        name: "layer", or "layer/table" if the layer has several tables.
        variable: What `Placement.create` has returned.
        shape: Of the whole table, (N, D).
        initializer: Keras initializer of the table.
        features: The names of the products: "layer", or "layer/feature" if there are several.
    """

    name: str
    variable: Any
    shape: tuple[int, int]
    initializer: Any
    features: tuple[str, ...]


class TableLayer(tf.keras.layers.Layer):
    """Base of layers whose weights may be bfloat16, divided among replicas, or rows in a file.

    HDF5 has no bfloat16. Keras 3 handles that itself; with Keras 2 such weights are written as
    float32, without loss.
    """

    def build_from_config(self, config: Any) -> None:
        """Builds the layer of a loaded model.

        Keras 2 does it outside of the layer's scope. Within it, the weights get the names that they
        have in a model that is called, which `CompositeOptimizer` looks for.
        """
        with contextlib.nullcontext() if KERAS_3 else tf.name_scope(self.name):
            super().build_from_config(config)

    def save_own_variables(self, store: Any) -> None:
        """Writes the weights to a `.keras` or `.weights.h5` file, with whole tables."""
        if KERAS_3 and not self._divided():
            super().save_own_variables(store)
            return
        for i, variable in enumerate(direct_variables(self)):
            store[f"{i}"] = value_in_file(variable)

    def load_own_variables(self, store: Any) -> None:
        """Reads the weights."""
        if KERAS_3 and not self._divided():
            super().load_own_variables(store)
            return
        variables = direct_variables(self)
        if len(store) != len(variables):
            raise ValueError(
                f"{type(self).__name__} '{self.name}' has {len(variables)} weights, "
                f"got {len(store)} in the file"
            )
        for i, variable in enumerate(variables):
            placement.placement_of(variable).assign(variable, store[f"{i}"][...])

    @property
    def table_variables(self) -> list[Any]:
        """The tables of the layer, in the order in which `build` creates them.

        They are what `Placement.create` has returned: variables, or tables on servers. There are
        none before the layer is built.
        """
        raise NotImplementedError

    @property
    def has_tiered_tables(self) -> bool:
        """Whether the rows of a table of the layer, which is built, are in a file."""
        return any(tiered_placement_of(v) is not None for v in direct_variables(self))

    def prefetch_rows(self, inputs: Any) -> tf.Tensor:
        """Announces a later batch to the tables whose rows are in files.

        Their rows are then read ahead; see the function `prefetch_rows`. Batches must be announced
        in the order in which the layer is called with them.

        Args:
            inputs: as of `call`.

        Returns:
            int64 scalar, the number of ids that were announced.
        """
        counts = [tf.constant(0, tf.int64)]
        with library.on_host():
            for table, ids in self._ids_of_tables(inputs):
                place = tiered_placement_of(table)
                if place is not None:
                    counts.append(place.prefetch(ids, table))
        return tf.add_n(counts)

    @property
    def lookup_tables(self) -> list[LookupTable]:
        """The tables of the layer, which is built, and the features that are looked up in each."""
        raise NotImplementedError

    def lookup_rows(self, inputs: Any) -> dict[str, SparseBatch]:
        """The rows and weights whose sums are the products of the features of `lookup_tables`.

        Args:
            inputs: As of `call`.

        Returns:
            Feature → CSR batch of rows of its table, with B rows.
        """
        raise NotImplementedError

    def _add_penalty(self, regularizer: Any, ids: tf.Tensor, table: Any) -> None:
        """Adds the penalty of the rows that a batch reads, each row once, to the losses.

        A penalty of all rows would read the whole table in each step and give it a dense gradient.
        """
        if placement.placement_of(table) is not placement.REPLICATED:
            raise ValueError(
                f"the regularizer of the table of layer {self.name!r} needs a table that is in the "
                "memory of this process and of no other one, got one on parameter servers, divided "
                "over replicas or in a file"
            )
        with library.on_host():
            unique = tf.unique(ids).y
            offsets = tf.range(tf.size(unique, tf.int64) + 1)
            rows = ops.sparse_linear(unique, None, offsets, table)
        self.add_loss(regularizer(rows))

    def _ids_of_tables(self, inputs: Any) -> list[tuple[Any, tf.Tensor]]:
        """The tables and the ids of their rows that a batch needs."""
        raise NotImplementedError

    def _divided(self) -> bool:
        return any(placement.placement_of(v).is_sharded for v in direct_variables(self))


def wrapped(batch: Any, num_rows: int, out_of_range: str) -> Any:
    """A batch whose ids are rows of a table, if ids outside of it are wrapped.

    Args:
        batch: A `SparseBatch`.
        num_rows: Rows of the table.
        out_of_range: "error": the batch as it is, whose op refuses an id out of range. "wrap": id
            mod `num_rows`, which is not negative.
    """
    if out_of_range == "error":
        return batch
    ids = tf.math.floormod(batch.ids, tf.constant(num_rows, batch.ids.dtype))
    if library.uses_static_shapes:  # -1 is padding
        ids = tf.where(batch.ids == -1, batch.ids, ids)
    return batch._replace(ids=ids)


def save_model(model: tf.keras.Model, file: str | Path) -> None:
    """Saves a model as `model.save` does, with tables in files copied some rows at a time.

    Keras makes a model file in memory. This function makes only the part without the tables in
    memory. While it runs, the folder needs space for the weights a second time.

    Args:
        model: any model.
        file: path that ends in ".keras". A regular file is replaced.

    Raises:
        OSError: the file cannot be written, or `file` is a folder, a socket or a block device.
    """
    with new_file(file, overwrite=True) as part, TemporaryDirectory(dir=part.parent) as folder:
        small, weights = Path(folder) / "small.keras", Path(folder) / _WEIGHTS
        with written_later() as tables:
            model.save(str(small))
        if not tables:
            small.replace(part)
            return
        whole = Path(folder) / "whole.keras"
        with zipfile.ZipFile(small) as before, zipfile.ZipFile(whole, "w") as after:
            for name in before.namelist():
                if name != _WEIGHTS:
                    after.writestr(name, before.read(name))
            before.extract(_WEIGHTS, folder)
            _write_tables(weights, tables)
            after.write(weights, _WEIGHTS)
        whole.replace(part)


def _write_tables(weights: Path, tables: list[Any]) -> None:
    with h5py.File(weights, "r+") as file:
        marked = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.shape == (2,) and item.dtype == np.int64:
                mark, number = item[...]
                if mark == MARK:
                    marked[name] = tables[number]

        file.visititems(visit)
        assert len(marked) == len(tables)
        for name, variable in marked.items():
            place = tiered_placement_of(variable)
            assert place is not None
            del file[name]
            rows = file.create_dataset(name, place.whole_shape(variable), np.float32)
            begin = 0
            for piece in place.pieces(variable):
                # HDF5 has no bfloat16; float32 has all its values.
                rows[begin : begin + len(piece)] = tf.cast(piece, tf.float32).numpy()
                begin += len(piece)
