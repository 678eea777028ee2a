"""The inputs of a model, and the flat tensors that a serving signature takes instead."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import layers
from twml_ops._keras import input_spec, input_specs, layer_calls, symbolic_inputs
from twml_ops.models import HashedIds

_KEEP_ROWS = (
    HashedIds,
    layers.CategoryRows,
    layers.DynamicLookup,
    layers.HashingDiscretizer,
    layers.MaxNorm,
    layers.OnlineStandardize,
    layers.PercentileDiscretizer,
    layers.StringHash,
)
"""Layers that return a ragged tensor of the same rows for each ragged tensor of their inputs."""

ROW_KEYS = "row_keys"  # of the layout "keyed_fields" of `data.Source.dataset`


class _Leaf(NamedTuple):
    """One input of a model.

    Attributes:
        name: Its name.
        spec: Its `tf.TypeSpec`.
    """

    name: str
    spec: Any


class ModelInputs:
    """The inputs of a model, in any of the batch forms, and their flat form.

    Serving signatures take dense tensors by name:

    - A ragged input `x` becomes `x` [K] and `x_row_splits` int64 [B + 1]. Ragged inputs `g_ids`, of
      integers, and `g_values`, of floats, that a layer takes as one batch (ids, values) share one
      `g_row_splits`.
    - A sparse input `x` [B, N] becomes `x_ids` int64 [K], `x_values` [K] and `x_row_splits`.
    - A dense input stays as it is.
    - The input `row_keys` is left out: it is used in training only. The model is given zeros.

    Args:
        model: A built Keras model; not used if `inputs` is given.
        inputs: The structure of specs that a subclassed model is called with, of `tf.TensorSpec`,
            `tf.RaggedTensorSpec` and `tf.SparseTensorSpec`. Ragged and sparse specs have no names;
            they are named by their keys in a dict, or input_0, input_1, …. A pair with the key `g`
            has the names `g_ids` and `g_values`. The layers of such a model are not known: their
            names say which inputs are one batch.

    Attributes:
        specs: The structure of specs that the model is called with.

    Raises:
        ValueError: The model has no symbolic inputs and `inputs` is None; or two inputs need flat
            tensors of one name.
    """

    def __init__(self, model: Any, inputs: Any = None) -> None:
        if inputs is None:
            inputs = symbolic_inputs(model)
            if inputs is None:
                raise ValueError(
                    f"model {model.name!r} has no symbolic inputs: pass their specs as `inputs`"
                )
            names = [t.name.split(":")[0] for t in tf.nest.flatten(inputs)]
            inputs = tf.nest.map_structure(input_spec, inputs)
            batches = _batches_of(model, names)
        else:
            names = _names(inputs)
            batches = {(f"{n[:-4]}_ids", f"{n[:-4]}_values") for n in names if n.endswith("_ids")}
        self.specs = inputs
        self._leaves = [
            _Leaf(name, spec) for name, spec in zip(names, _flatten(inputs), strict=True)
        ]
        self._check_names(batches)

    def _check_names(self, batches: set[tuple[str, str]]) -> None:
        """Refuses two inputs with a flat tensor of one name, except the row splits of one batch."""
        kinds = {
            leaf.name: leaf.spec.dtype
            for leaf in self._leaves
            if isinstance(leaf.spec, tf.RaggedTensorSpec)
        }
        batches = {
            (ids, values)
            for ids, values in batches
            if ids in kinds and kinds[ids].is_integer and kinds.get(values, tf.int64).is_floating
        }
        owners: dict[str, str] = {}
        for leaf in self._leaves:
            for name in _flat_specs(leaf):
                owner = owners.setdefault(name, leaf.name)
                pair = (owner, leaf.name)
                if owner != leaf.name and pair not in batches and pair[::-1] not in batches:
                    raise ValueError(
                        f"the inputs {owner!r} and {leaf.name!r} of the model both need a tensor "
                        f"{name!r} in the export: rename one of them. Only inputs g_ids, of "
                        "integers, and g_values, of floats, that a layer takes as one batch (ids, "
                        "values) share their row splits"
                    )

    def flat_specs(self) -> dict[str, tf.TensorSpec]:
        """The specs of the tensors that a signature takes, by name."""
        flat: dict[str, tf.TensorSpec] = {}
        for leaf in self._leaves:
            flat |= _flat_specs(leaf)
        return flat

    @tf.autograph.experimental.do_not_convert
    def assemble(self, tensors: dict[str, tf.Tensor]) -> Any:
        """Assembles the model's inputs from the flat tensors."""
        return self._pack(
            {n: self._leaf(n, spec, tensors) for n, spec in self._leaves if n != ROW_KEYS}
        )

    def select(self, features: dict[str, Any]) -> Any:
        """The model's inputs out of features by name, which may be more than it takes.

        Raises:
            ValueError: the model takes an input that is no feature.
        """
        names = [leaf.name for leaf in self._leaves if leaf.name != ROW_KEYS]
        unknown = [name for name in names if name not in features]
        if unknown:
            raise ValueError(
                f"the model has the inputs {unknown}, which are no features of the schema; those "
                f"are {sorted(features)}"
            )
        return self._pack({name: features[name] for name in names})

    def _pack(self, leaves: dict[str, Any]) -> Any:
        """The structure of inputs with the given leaves, and zeros as the row keys."""
        if any(leaf.name == ROW_KEYS for leaf in self._leaves):
            leaves[ROW_KEYS] = tf.zeros([_num_rows(next(iter(leaves.values())))], tf.int64)
        ordered = [leaves[leaf.name] for leaf in self._leaves]
        return tf.nest.pack_sequence_as(self.specs, ordered, expand_composites=False)

    @staticmethod
    def _leaf(name: str, spec: Any, tensors: dict[str, tf.Tensor]) -> Any:
        if isinstance(spec, tf.RaggedTensorSpec):
            return tf.RaggedTensor.from_row_splits(tensors[name], tensors[row_splits_name(name)])
        if not isinstance(spec, tf.SparseTensorSpec):
            return tensors[name]
        ids, splits = tensors[f"{name}_ids"], tensors[row_splits_name(name)]
        rows = tf.RaggedTensor.from_row_splits(ids, splits)
        shape = tf.stack([rows.nrows(), tf.constant(spec.shape[1], tf.int64)])
        indices = tf.stack([rows.value_rowids(), ids], axis=1)
        return tf.SparseTensor(indices, tensors[f"{name}_values"], shape)


def _flat_specs(leaf: _Leaf) -> dict[str, tf.TensorSpec]:
    """The specs of the flat tensors of an input, by name."""
    name, spec = leaf
    if name == ROW_KEYS:
        return {}
    flat = {}
    if isinstance(spec, tf.RaggedTensorSpec):
        flat[name] = tf.TensorSpec([None], spec.dtype, name)
    elif isinstance(spec, tf.SparseTensorSpec):
        flat[f"{name}_ids"] = tf.TensorSpec([None], tf.int64, f"{name}_ids")
        flat[f"{name}_values"] = tf.TensorSpec([None], spec.dtype, f"{name}_values")
    else:
        return {name: tf.TensorSpec(spec.shape, spec.dtype, name)}
    splits = row_splits_name(name)
    return {**flat, splits: tf.TensorSpec([None], tf.int64, splits)}


def _batches_of(model: Any, names: Sequence[str]) -> set[tuple[str, str]]:
    """The names of inputs that a layer of a functional model takes one after the other.

    Inputs that went through layers which keep the rows of ragged tensors count as well.
    """
    found: set[tuple[str, str]] = set()

    def visit(outputs: Any, sources: dict[Any, str]) -> list[str | None]:
        calls, keys = layer_calls(outputs)
        for call in calls:
            given = [sources.get(key) for key in call.inputs]
            if isinstance(call.layer, tf.keras.Model) and symbolic_inputs(call.layer) is not None:
                _, inner = layer_calls(call.layer.inputs)
                bound = {k: s for k, s in zip(inner, given, strict=True) if s is not None}
                results = visit(call.layer.outputs, bound)
            else:
                pairs = itertools.pairwise(given)
                found.update((a, b) for a, b in pairs if a is not None and b is not None)
                if not isinstance(call.layer, _KEEP_ROWS):
                    continue
                several = len(given) == len(call.outputs)
                results = given if several else given[:1] * len(call.outputs)
            made = zip(call.outputs, results, strict=True)
            sources |= {key: source for key, source in made if source is not None}
        return [sources.get(key) for key in keys]

    specs = input_specs(model)
    visit(model.outputs, dict(zip(specs, names, strict=True)))
    return found


def row_splits_name(name: str) -> str:
    """The name of the row splits of an input; inputs `g_ids` and `g_values` share one."""
    group = name.removesuffix("_ids")
    return f"{group if group != name else name.removesuffix('_values')}_row_splits"


def _num_rows(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows()
    return leaf.dense_shape[0] if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)[0]


def _flatten(specs: Any) -> list[Any]:
    return tf.nest.flatten(specs, expand_composites=False)


def _names(specs: Any) -> list[str]:
    if isinstance(specs, dict):
        names = []
        for key in sorted(specs):  # as tf.nest orders them
            parts = len(_flatten(specs[key]))
            of_pair = [f"{key}_ids", f"{key}_values"]
            several = of_pair if parts == 2 else [f"{key}_{i}" for i in range(parts)]
            names += [str(key)] if parts == 1 else several
        return names
    return [getattr(s, "name", None) or f"input_{i}" for i, s in enumerate(_flatten(specs))]
