"""Computes predictions of an exported model with NumPy, without TensorFlow."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tests.core.numpy_field_steps import (
    FIELD_STEPS,
    Array,
    Registers,
    Step,
)
from tests.core.numpy_raw_columns import RawColumns
from tests.core.numpy_sparse_steps import SPARSE_STEPS
from twml_ops import _core
from twml_ops._raw_columns import strings_of

FORMATS = (1, 3)  # without changed rows
PROGRAM_FILE = "scorer.json"


class Scorer:
    """A model that `twml_ops.export.to_scorer` wrote. Use `Scorer.load` to read it.

    A scorer has no state that changes, so any number of threads may use it.

    Args:
        inputs: name → role of each input array. The roles "ids", "values" and "row_splits" are the
            parts of a sparse batch, "dense" is a dense array.
        steps: functions that read and write the arrays of a call by their names, in the order in
            which they are called.
        output: the name of the array that `predict` returns.
        raw: makes the inputs of raw columns; None: the scorer takes no raw columns.
        outputs: the shapes of several outputs, whose numbers are side by side in `output`.
    """

    def __init__(
        self,
        inputs: Mapping[str, str],
        steps: list[Step],
        output: str,
        raw: RawColumns | None = None,
        outputs: Mapping[str, list[int]] | None = None,
    ) -> None:
        self._raw = raw
        self._inputs = dict(inputs)
        self._steps = steps
        self._output, self._outputs = output, outputs or {}
        self._roles = {role: name for name, role in inputs.items()}
        self._one_batch = len(self._roles) == len(self._inputs) and "dense" not in self._roles

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scorer:
        """Reads a model from a folder.

        Args:
            path: the folder that `to_scorer` wrote. Tables are memory-mapped: processes on one
                machine share their memory, and rows that are not used are not loaded.

        Returns:
            The scorer.

        Raises:
            FileNotFoundError: the folder or a file in it does not exist.
            ValueError: the model has a format that this version of the package cannot read.
        """
        folder = Path(path)
        program = json.loads((folder / PROGRAM_FILE).read_text())
        if program["format"] not in FORMATS:
            raise ValueError(
                f"{folder} has the format {program['format']}, this version reads {FORMATS}"
            )
        steps = []
        for step in program["steps"]:
            arrays = {k: np.load(folder / f, mmap_mode="r") for k, f in step["arrays"].items()}
            # Small arrays are copied, because they are used in every call and mapped arrays are
            # slower. np.asarray turns the others into plain arrays without a copy.
            arrays = {
                k: np.array(a) if a.nbytes < 1 << 20 else np.asarray(a) for k, a in arrays.items()
            }
            make = _STEPS[step["op"]]
            steps.append(make(*step["in"], *step["out"], **arrays, **step["attributes"]))
        raw = RawColumns(**program["raw"]) if "raw" in program else None
        outputs = {o["name"]: o["shape"] for o in program.get("outputs", [])}
        return cls(program["inputs"], steps, program["output"], raw, outputs)

    @property
    def inputs(self) -> list[str]:
        """The names of the arrays that the model takes."""
        return list(self._inputs)

    @property
    def columns(self) -> list[str]:
        """The names of the raw columns that `predict` takes; empty if it takes none."""
        return [] if self._raw is None else list(self._raw.columns)

    def predict(
        self,
        ids: ArrayLike | Mapping[str, ArrayLike],
        values: ArrayLike | None = None,
        row_splits: ArrayLike | None = None,
    ) -> Any:
        """Computes the predictions of a batch.

        Args:
            ids: int64 [K], the feature ids of all rows. For a model with several inputs, a mapping
                from the names in `inputs` to arrays, with the shapes and types of the
                `serving_default` signature of an exported SavedModel. For a scorer that was
                exported with a schema, also a mapping from the names in `columns` to raw data, each
                [B]: numbers, in which None and NaN are missing values; and categories as text,
                bytes, integers or bools, in which None, NaN and "" are missing values. A bag in the
                column `tags` is `tags` [K] and `tags_row_splits` [B + 1]. Other entries of such a
                mapping are ignored.
            values: float32 [K], the values of the features, or None if the model takes no values.
            row_splits: int64 [B + 1], the CSR offsets of the rows, or None for a single row.

        Returns:
            The model's output, float32 [B, …]; of several outputs a dict of them by name.

        Raises:
            ValueError: an input is missing or unexpected, a column has another type or length, an
                id is out of range, or `row_splits` is not a valid sequence of offsets.
        """
        if isinstance(ids, Mapping):
            registers: Registers
            if self._raw is not None and ids.keys() != self._inputs.keys():
                registers = {k: v for k, v in self._raw.features(ids).items() if k in self._inputs}
            else:
                registers = {k: np.asarray(v) for k, v in ids.items()}
        else:
            if not self._one_batch:
                raise ValueError(
                    f"ids must be a mapping with the inputs {self.inputs}, got an array"
                )
            ids = np.asarray(ids)
            splits = (0, len(ids)) if row_splits is None else row_splits
            registers = {self._roles["ids"]: ids, self._roles["row_splits"]: np.asarray(splits)}
            if values is not None:
                registers[self._roles.get("values", "values")] = np.asarray(values)
        if registers.keys() != self._inputs.keys():
            raise ValueError(f"the inputs must be {self.inputs}, got {sorted(registers)}")
        for step in self._steps:
            step(registers)
        made = registers[self._output]
        if not self._outputs:
            return made
        ends = np.cumsum([math.prod(shape) for shape in self._outputs.values()])
        parts = np.split(made, ends[:-1], axis=1)
        return {
            name: part.reshape(len(part), *shape)
            for (name, shape), part in zip(self._outputs.items(), parts, strict=True)
        }


# Steps ------------------------------------------------------------------------------------------


def _calibrated(curve: Callable[[Array, int], Array], nan: str, base_rates: Array) -> Any:
    """A step that applies the curve of each unit to its column."""

    def at(x: Array) -> Array:
        columns = x.reshape(-1, len(base_rates))
        y = np.empty_like(columns)
        for unit, rate in enumerate(base_rates):
            scores = columns[:, unit]
            missing = np.isnan(scores)
            y[:, unit] = curve(np.where(missing, 0, scores).astype(np.float32), unit)
            y[missing, unit] = rate if nan == "base_rate" else np.nan
        return y.reshape(x.shape)

    return at


def _platt_scaling(
    x: str,
    out: str,
    *,
    slopes: Array,
    intercepts: Array,
    base_rates: Array,
    from_logits: bool,
    nan: str,
) -> Step:
    def curve(scores: Array, unit: int) -> Array:
        if not from_logits:
            p = np.clip(scores, np.float32(1e-7), np.float32(1 - 1e-7))
            scores = np.log(p) - np.log1p(-p)
        product = scores * slopes[unit] if slopes[unit] else np.zeros_like(scores)
        return _sigmoid(product + intercepts[unit])

    at = _calibrated(curve, nan, base_rates)

    def step(r: Registers) -> None:
        r[out] = at(r[x])

    return step


def _isotonic_calibration(
    x: str, out: str, *, corner_scores: Array, corner_values: Array, base_rates: Array, nan: str
) -> Step:
    def curve(scores: Array, unit: int) -> Array:
        return np.interp(scores, corner_scores[unit], corner_values[unit]).astype(np.float32)

    at = _calibrated(curve, nan, base_rates)

    def step(r: Registers) -> None:
        r[out] = at(r[x])

    return step


def _hashes(values: Any, key: list[int]) -> Array:
    data, offsets = strings_of("x", np.asarray(values))
    ids = _core.hash_strings(data, offsets, tuple(key), num_buckets=1 << 62)
    return np.where(np.diff(offsets) == 0, -1, ids)


def _hash_strings(x: str, out: str, *, kind: str, keys: list[list[int]]) -> Step:
    del kind

    def step(r: Registers) -> None:
        columns = np.asarray(r[x]).reshape(-1, len(keys)).T
        ids = [_hashes(column, key) for column, key in zip(columns, keys, strict=True)]
        r[out] = np.stack(ids, axis=1)

    return step


def _hash_bag(
    x: str,
    values: None,
    row_splits: str,
    out: str,
    out_values: None,
    out_splits: str,
    *,
    kind: str,
    keys: list[list[int]],
) -> Step:
    del values, out_values, kind

    def step(r: Registers) -> None:
        ids = _hashes(r[x], keys[0])
        r[out] = ids[ids != -1]
        r[out_splits] = np.concatenate([[0], np.cumsum(ids != -1)])[r[row_splits]]

    return step


def _slice(x: str, out: str, *, begin: int, size: int) -> Step:
    def step(r: Registers) -> None:
        r[out] = r[x][:, begin : begin + size]

    return step


def _outputs(*registers: str) -> Step:
    *terms, out = registers

    def step(r: Registers) -> None:
        arrays = [np.asarray(r[t], np.float32) for t in terms]
        flat = [x.reshape(len(x), math.prod(x.shape[1:])) for x in arrays]
        r[out] = np.concatenate(flat, axis=1)

    return step


def _dense(x: str, out: str, *, kernel: Array, bias: Array | None = None) -> Step:
    def step(r: Registers) -> None:
        y = r[x] @ kernel
        r[out] = y if bias is None else np.add(y, bias, out=y)

    return step


def _cross(x0: str, x: str, product: str, out: str, *, diag_scale: float) -> Step:
    def step(r: Registers) -> None:
        p = r[product] + diag_scale * r[x] if diag_scale else r[product]
        r[out] = r[x0] * p + r[x]

    return step


def _factorization_machine(*registers: str, pool: bool) -> Step:
    *terms, out = registers

    def step(r: Registers) -> None:
        vectors = [r[t] for t in terms]
        if len(vectors) == 1 and vectors[0].ndim == 3:  # [B, F, d]
            vectors = list(vectors[0].swapaxes(0, 1))
        total, squares = vectors[0], vectors[0] * vectors[0]
        for v in vectors[1:]:
            total = total + v
            squares = squares + v * v
        products = np.float32(0.5) * (total * total - squares)
        r[out] = products.sum(1, keepdims=True) if pool else products

    return step


def _affine(x: str, out: str, *, factor: Array, offset: Array) -> Step:
    def step(r: Registers) -> None:
        r[out] = r[x] * factor + offset

    return step


def _activation(x: str, out: str, *, name: str) -> Step:
    function = ACTIVATIONS[name]

    def step(r: Registers) -> None:
        r[out] = function(r[x])

    return step


def _merge(name: str) -> Callable[..., Step]:
    def make(*registers: str, **options: Any) -> Step:
        *terms, out = registers

        def step(r: Registers) -> None:
            arrays = [r[t] for t in terms]
            if name == "concatenate":
                r[out] = np.concatenate(arrays, **options)
                return
            y = arrays[0]
            for other in arrays[1:]:
                y = y * other if name == "multiply" else y + other
            r[out] = y / np.float32(len(arrays)) if name == "average" else y

        return step

    return make


_erf: Any = np.frompyfunc(math.erf, 1, 1)  # NumPy has no erf


def _gelu(x: Array) -> Array:
    return x * (0.5 * (1 + _erf(x * math.sqrt(0.5)).astype(np.float32)))


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5  # this form does not overflow


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "exponential": np.exp,
    "gelu": _gelu,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "softmax": _softmax,
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
    "swish": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
}
"""Name in Keras → activation function, for all activations that a scorer supports."""

_STEPS: dict[str, Callable[..., Step]] = {
    **FIELD_STEPS,
    **SPARSE_STEPS,
    "activation": _activation,
    "add": _merge("add"),
    "affine": _affine,
    "average": _merge("average"),
    "concatenate": _merge("concatenate"),
    "cross": _cross,
    "dense": _dense,
    "factorization_machine": _factorization_machine,
    "hash_bag": _hash_bag,
    "hash_strings": _hash_strings,
    "isotonic_calibration": _isotonic_calibration,
    "multiply": _merge("multiply"),
    "outputs": _outputs,
    "platt_scaling": _platt_scaling,
    "slice": _slice,
}
