"""Writing models whose tables are in files, without the memory of whole tables."""

from __future__ import annotations

import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from twml_ops._publish import new_file
from twml_ops.placement.tiered import tiered_placement_of
from twml_ops.placement.whole_values import MARK, written_later

_WEIGHTS = "model.weights.h5"  # in a .keras file


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
