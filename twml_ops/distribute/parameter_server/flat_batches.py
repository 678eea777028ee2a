"""Batches as lists of tensors, and the calls of a step with them.

TensorFlow examines the structure of the arguments in each call of a function, and Python makes a
ragged tensor from its parts for each batch of a dataset. For a model on several ragged features
both take longer than the ops of a step. A batch is therefore a list of tensors until the graph of
a step, whose kind of batch is known when it is traced, restores the structure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

Batch = tuple[Any, Any, Any]
"""The features of a batch, its labels, and its weights or None."""


def unpack_batch(batch: Any) -> Batch:
    """Returns the features of a batch, its labels, and its weights or None."""
    x, y, *weights = batch
    return x, y, weights[0] if weights else None


@dataclasses.dataclass(frozen=True, eq=False)
class BatchKind:
    """What batches of any number of examples have in common.

    Attributes:
        spec: (x, y) or (x, y, weights) with the type of each tensor; None where there is none.
    """

    spec: Any

    def specs(self, features: bool = False) -> list[tf.TensorSpec]:
        """Returns the types of the tensors of a batch, or of its features only."""
        leaves = tf.nest.flatten(self.spec[0] if features else self.spec, expand_composites=True)
        return [leaf for leaf in leaves if leaf is not None]

    def restore(self, tensors: Iterator[tf.Tensor]) -> Batch:
        """Returns the batch that has the next tensors."""
        return unpack_batch(_pack(self.spec, tensors))

    def restore_features(self, tensors: Iterator[tf.Tensor]) -> Any:
        """Returns the features that have the next tensors."""
        return _pack(self.spec[0], tensors)


class FlatBatch(NamedTuple):
    """A batch.

    Attributes:
        kind: Its kind.
        tensors: The tensors of the features, then of the labels and of the weights.
    """

    kind: BatchKind
    tensors: Sequence[tf.Tensor]

    def restored(self) -> Batch:
        """Returns the batch with its structure."""
        return self.kind.restore(iter(self.tensors))

    def features(self) -> list[tf.Tensor]:
        """Returns the tensors of the features."""
        return list(self.tensors[: len(self.kind.specs(features=True))])


class FlatBatches:
    """Iterates over batches, whose kinds are the same objects in all iterations."""

    def __init__(self) -> None:
        self._kinds: list[BatchKind] = []

    def of(self, dataset: Any) -> Callable[[], Iterable[FlatBatch]]:
        """Returns a function that begins an iteration over a dataset.

        Args:
            dataset: A `tf.data.Dataset`, or another iterable, of batches (x, y) or (x, y, weights).
        """
        if not isinstance(dataset, tf.data.Dataset):
            return lambda: map(self._flat, dataset)
        kind = self._kind(dataset.element_spec)
        flat = dataset.map(lambda *batch: tuple(_flatten(batch)))
        return lambda: (FlatBatch(kind, tensors) for tensors in flat)

    def _flat(self, batch: Any) -> FlatBatch:
        batch = tuple(batch)
        return FlatBatch(self._kind(batch), _flatten(batch))

    def _kind(self, batch: Any) -> BatchKind:
        spec = tf.nest.map_structure(_any_length, tuple(batch))
        for kind in self._kinds:
            if kind.spec == spec:
                return kind
        self._kinds.append(BatchKind(spec))
        return self._kinds[-1]


class StepCalls:
    """Calls a function of batches as a graph, which is traced once for each kind of arguments.

    A kind has any number of examples. Otherwise a smaller last batch would be traced again at each
    of its places in a call.

    Args:
        function: (number, batches, prefetched, next_xs) -> lists of tensors; see `StepGraph.train`.

    Attributes:
        traced: The graph of each kind of arguments that has been used.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.traced: dict[Any, Callable[..., Any]] = {}

    def __call__(
        self,
        number: tf.Tensor,
        batches: Sequence[FlatBatch],
        prefetched: Sequence[Sequence[tf.Tensor]] | None,
        following: Sequence[FlatBatch] | None,
    ) -> Any:
        """Calls the function.

        Args:
            number: An int64 scalar.
            batches: The batches.
            prefetched: Lists of tensors; None: there are none.
            following: Batches whose features are an argument; None: there are none.

        Returns:
            What the function returns.
        """
        tensors = [number]
        for batch in batches:
            tensors += batch.tensors
        for products in prefetched or ():
            tensors += products
        for batch in following or ():
            tensors += batch.features()
        key = (
            tuple(batch.kind for batch in batches),
            None if prefetched is None else tuple(map(len, prefetched)),
            None if following is None else tuple(batch.kind for batch in following),
        )
        if key not in self.traced:
            self.traced[key] = self._trace(*key, tensors)
        return self.traced[key](*tensors)

    def _trace(
        self,
        kinds: Sequence[BatchKind],
        lengths: Sequence[int] | None,
        following: Sequence[BatchKind] | None,
        tensors: Sequence[tf.Tensor],
    ) -> Callable[..., Any]:
        def call(number: tf.Tensor, *tensors: tf.Tensor) -> Any:
            rest = iter(tensors)
            batches = [kind.restore(rest) for kind in kinds]
            prefetched = next_xs = None
            if lengths is not None:
                prefetched = [[next(rest) for _ in range(count)] for count in lengths]
            if following is not None:
                next_xs = [kind.restore_features(rest) for kind in following]
            return self._function(number, batches, prefetched, next_xs)

        specs = [tf.TensorSpec([], tf.int64)]
        for kind in kinds:
            specs += kind.specs()
        products = tensors[len(specs) : len(specs) + sum(lengths or ())]
        specs += [tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in products]
        for kind in following or ():
            specs += kind.specs(features=True)
        return tf.function(call, autograph=False).get_concrete_function(*specs)


def _flatten(batch: Any) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return [_tensor(leaf) for leaf in leaves if leaf is not None]


def _tensor(value: Any) -> Any:
    is_composite = isinstance(value, (tf.RaggedTensor, tf.SparseTensor))
    return value if is_composite else tf.convert_to_tensor(value)


def _pack(spec: Any, tensors: Iterator[tf.Tensor]) -> Any:
    leaves = tf.nest.flatten(spec, expand_composites=True)
    found = [None if leaf is None else next(tensors) for leaf in leaves]
    return tf.nest.pack_sequence_as(spec, found, expand_composites=True)


def _any_length(value: Any) -> Any:
    """The type of a tensor of a batch, or of its type, without its number of examples."""
    if value is None:
        return None
    known = isinstance(value, tf.TypeSpec)
    spec = value if known else tf.type_spec_from_value(_tensor(value))
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = spec.shape[1 + spec.ragged_rank :]
        shape = [None] * (1 + spec.ragged_rank) + inner.as_list()
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec([None, *spec.shape[1:]], spec.dtype)
    return tf.TensorSpec([None, *spec.shape[1:]] if spec.shape.rank else [], spec.dtype)
