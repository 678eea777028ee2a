"""Writing models whose tables are in files, without the memory of whole tables."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from twml_ops._publish import new_file
from twml_ops.placement.tiered import tiered_placement_of

_WEIGHTS = "model.weights.h5"  # in a .keras file
_MARK = 0x7477_6D6C_6F70_7331  # of the number of a table, in its place in the HDF5 file
_LATER: ContextVar[list[Any] | None] = ContextVar("tables that are written later", default=None)


def save_model(model: tf.keras.Model, file: str | Path) -> None:
    """Saves a model as `model.save` does, with tables in files copied some rows at a time.

    Keras makes the file in memory. Here that has only what is no table in a file. Next to the file
    there must be room for the weights once more.

    Args:
        model: any model.
        file: path that ends in ".keras". A regular file is replaced.

    Raises:
        OSError: the file cannot be written, or `file` is a folder, a socket or a block device.
    """
    with new_file(file, overwrite=True) as part, TemporaryDirectory(dir=part.parent) as folder:
        small, weights = Path(folder) / "small.keras", Path(folder) / _WEIGHTS
        with _later() as tables:
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


def placeholder(variable: Any) -> np.ndarray | None:
    """What a layer stores for a table that is written later.

    Args:
        variable: a weight of the layer.

    Returns:
        An array; None if the layer has to store the weight itself.
    """
    tables = _LATER.get()
    if tables is None or tiered_placement_of(variable) is None:
        return None
    tables.append(variable)
    return np.array([_MARK, len(tables) - 1], np.int64)


@contextlib.contextmanager
def _later() -> Iterator[list[Any]]:
    tables: list[Any] = []
    token = _LATER.set(tables)
    try:
        yield tables
    finally:
        _LATER.reset(token)


def _write_tables(weights: Path, tables: list[Any]) -> None:
    with h5py.File(weights, "r+") as file:
        marked = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.shape == (2,) and item.dtype == np.int64:
                mark, number = item[...]
                if mark == _MARK:
                    marked[name] = tables[number]

        file.visititems(visit)
        assert len(marked) == len(tables)
        for name, variable in marked.items():
            place = tiered_placement_of(variable)
            assert place is not None
            del file[name]
            rows = file.create_dataset(name, place.shape, np.float32)
            begin = 0
            for piece in place.pieces(variable):
                # HDF5 has no bfloat16; float32 has all its values.
                rows[begin : begin + len(piece)] = tf.cast(piece, tf.float32).numpy()
                begin += len(piece)
