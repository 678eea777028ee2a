"""Makes batches of static shape, which XLA and accelerators need."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

MaxEntries = float | int | Mapping[str, float | int]


class Padded(NamedTuple):
    """The result of `pad_to_static`.

    Attributes:
        dataset: the padded batches.
        max_entries: feature → M, the number of entries that a row can hold.
        cut: feature → the share of its entries that were cut off, in the batches examined.
    """

    dataset: tf.data.Dataset
    max_entries: dict[str, int]
    cut: dict[str, float]

    def report(self) -> str:
        """Describes the widths.

        Returns:
            One line for each feature: M, and the share of the entries that are cut off.
        """
        return "\n".join(
            f"{name or 'entries'}: {m} a row, {self.cut[name]:.3%} of the entries cut"
            for name, m in self.max_entries.items()
        )


def pad_to_static(
    dataset: tf.data.Dataset,
    max_entries: MaxEntries = 0.99,
    *,
    batch_size: int | None = None,
    sample_batches: int | None = None,
    multiple_of: int = 1,
) -> Padded:
    """Turns ragged or sparse batches into padded ones of known shape.

    A ragged tensor becomes a dense one [B, M], with id -1 (integers) or value 0 in the places that
    no entry has; a `tf.SparseTensor` a pair (ids, values). A row keeps its first M entries. Tensors
    that are dense already stay as they are.

    Features are named by their place: dict keys and tuple positions, joined by "/". What belongs
    together, `x_ids` and `x_values` or the two of a pair, is one feature, `x`, with one M; a pair
    at the top is "".

    The result has a known length, unless only a part of `dataset` is examined (`sample_batches`)
    and its length is unknown or batches may be left out. Keras needs the length: at the end of a
    dataset of unknown length `fit` runs a step without a batch, which counts in
    `optimizer.iterations` and, where shapes are static, in the mean loss of the epoch. If you know
    the length n, apply `tf.data.experimental.assert_cardinality(n)`.

    Args:
        dataset: batches, or (features, labels, ...) tuples of them: features are the first item
            then, and the others are left alone.
        max_entries: M. A float in (0, 1]: the least M that as large a share of the rows fits into;
            an int: that many; a mapping from features: either, for each.
        batch_size: B, known from then on; batches of another size, such as a short last one, are
            left out. None: as `dataset` says.
        sample_batches: how many batches are looked at for the shares; None: all, and every pass
            over `dataset` must have as many.
        multiple_of: M is raised to a multiple of this (8 suits a TPU).

    Returns:
        The padded dataset, with the width of each feature.

    Raises:
        ValueError: a share out of (0, 1], a number below 1, a mapping without a feature, or no
            ragged or sparse feature at all.
    """
    has_labels = isinstance(dataset.element_spec, tuple) and not _is_pair(dataset.element_spec)
    spec = dataset.element_spec[0] if has_labels else dataset.element_spec
    names = sorted(set(_leaves(spec, lambda path, leaf: None if _dense(leaf) else _feature(path))))
    if not names:
        raise ValueError("dataset must have ragged or sparse features, got only dense ones")
    if isinstance(max_entries, Mapping):
        missing = sorted(set(names) - set(max_entries))
        if missing:
            raise ValueError(f"max_entries must name every feature, got none for {missing}")
    looked_at = dataset if sample_batches is None else dataset.take(sample_batches)
    lengths, rows = _lengths(looked_at.map(lambda *x: x[0]) if has_labels else looked_at)
    widths, cut = {}, {}
    for name in names:
        wanted = max_entries[name] if isinstance(max_entries, Mapping) else max_entries
        width = _width(name, wanted, lengths[name])
        widths[name] = -(-width // multiple_of) * multiple_of
        cut[name] = _share_cut(lengths[name], widths[name])

    def pad(path: str, leaf: Any) -> Any:
        if _dense(leaf):
            return _known_rows(leaf, batch_size)
        return _padded(leaf, widths[_feature(path)], batch_size)

    def padded(*batch: Any) -> Any:
        if not has_labels:
            return _map(batch[0] if len(batch) == 1 else batch, pad)
        others = tf.nest.map_structure(lambda t: _known_rows(t, batch_size), batch[1:])
        return (_map(batch[0], pad), *others)

    if batch_size is not None and _static_rows(spec) != batch_size:
        dataset = dataset.filter(lambda *b: tf.equal(_num_rows(b), batch_size))
    result = dataset.map(padded, num_parallel_calls=tf.data.AUTOTUNE)
    if sample_batches is None and result.cardinality() == tf.data.UNKNOWN_CARDINALITY:
        kept = len(rows) if batch_size is None else rows.count(batch_size)
        result = result.apply(tf.data.experimental.assert_cardinality(kept))
    return Padded(result, widths, cut)


def _width(name: str, wanted: float | int, lengths: np.ndarray) -> int:
    """M; `lengths[n]` rows have n entries."""
    if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted < 1):
        raise ValueError(f"max_entries of {name!r} must be at least 1, got {wanted}")
    if isinstance(wanted, int):
        return wanted
    if not 0 < wanted <= 1:
        raise ValueError(f"max_entries of {name!r} must be a share in (0, 1], got {wanted}")
    total = int(lengths.sum())
    enough = np.cumsum(lengths) >= math.ceil(wanted * total - 1e-9)
    return max(1, int(np.argmax(enough)))


def _share_cut(lengths: np.ndarray, width: int) -> float:
    n = np.arange(len(lengths))
    entries = int((lengths * n).sum())
    return float((lengths * np.maximum(n - width, 0)).sum() / entries) if entries else 0.0


def _lengths(features: tf.data.Dataset) -> tuple[dict[str, np.ndarray], list[int]]:
    """Feature -> how many rows have 0, 1, 2, ... entries; and the rows of each batch."""
    counts: dict[str, np.ndarray] = {}
    batches: list[int] = []

    def count(path: str, leaf: Any) -> int | None:
        if _dense(leaf):
            return None
        if isinstance(leaf, tf.SparseTensor):
            rows = np.bincount(leaf.indices[:, 0], minlength=int(leaf.dense_shape[0]))
        else:
            rows = leaf.row_lengths().numpy()
        new, name = np.bincount(rows), _feature(path)
        old = counts.get(name, np.zeros(1, np.int64))
        size = max(len(old), len(new))
        if not path.endswith(("_values", "/1")) and path != "1":  # these are as their ids
            counts[name] = np.pad(old, (0, size - len(old))) + np.pad(new, (0, size - len(new)))
        return len(rows)

    for batch in features:
        batches.append(_leaves(batch, count)[0])
    if not counts:
        raise ValueError("dataset must have at least one batch to look at, got none")
    return counts, batches


def _padded(leaf: Any, width: int, batch_size: int | None) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        row_ids = leaf.indices[:, 0]
        pair = [
            tf.RaggedTensor.from_value_rowids(x, row_ids, leaf.dense_shape[0], validate=False)
            for x in (leaf.indices[:, 1], leaf.values)
        ]
        return tuple(_padded(x, width, batch_size) for x in pair)
    default = tf.cast(-1 if leaf.dtype.is_integer else 0, leaf.dtype)
    return _known_rows(leaf.to_tensor(default, shape=[None, width]), batch_size)


def _known_rows(tensor: Any, batch_size: int | None) -> Any:
    if batch_size is None or not isinstance(tensor, tf.Tensor) or tensor.shape.rank == 0:
        return tensor
    return tf.ensure_shape(tensor, [batch_size, *tensor.shape[1:]])


def _num_rows(batch: Any) -> tf.Tensor:
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    return tf.shape(first)[0]


def _static_rows(spec: Any) -> int | None:
    """The rows of every batch, where its first component's shape says it."""
    shape = tf.nest.flatten(spec)[0].shape
    return shape[0] if shape.rank else None


def _feature(path: str) -> str:
    return re.sub(r"(_ids|_values|/[01]|^[01])$", "", path)


def _dense(leaf: Any) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.TensorSpec))


def _is_pair(spec: Any) -> bool:
    return len(spec) == 2 and all(isinstance(s, tf.RaggedTensorSpec) for s in spec)


def _map(tree: Any, fn: Callable[[str, Any], Any], path: str = "") -> Any:
    """`tree` with `fn(path, leaf)` for its leaves."""
    if isinstance(tree, Mapping):
        return {k: _map(v, fn, f"{path}/{k}" if path else str(k)) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        items = (_map(v, fn, f"{path}/{i}" if path else str(i)) for i, v in enumerate(tree))
        return tuple(items)
    return fn(path, tree)


def _leaves(tree: Any, fn: Callable[[str, Any], Any]) -> list[Any]:
    """The results of `fn(path, leaf)` for the leaves of `tree`, without None."""
    found: list[Any] = []
    _map(tree, lambda path, leaf: found.append(fn(path, leaf)))
    return [x for x in found if x is not None]
