"""SavedModels of Keras models: with the ops of this package, or of stock TensorFlow ops alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import all_layers
from twml_ops.export.model_inputs import ModelInputs
from twml_ops.export.serving_ops import stock_ops
from twml_ops.export.tables import TableFormat, stored_variables
from twml_ops.ops._tape import tf_variable

Path = str | os.PathLike[str]


def to_tf(
    model: tf.keras.Model,
    path: Path,
    *,
    inputs: Any = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Writes a SavedModel with the ops of this package, which must be loaded to restore it.

    The restored object is called with what the model is called with. Its `serving_default`
    signature takes flat tensors, as `twml_ops.export.model_inputs.ModelInputs` says, and gives the
    outputs by name.

    Args:
        model: a built Keras model.
        path: folder to write.
        inputs: specs of what the model is called with; needed for subclassed models only.
        output_names: of the signature's outputs; None: as the model names them. (A dict of outputs
            keeps its keys.)

    Raises:
        ValueError: the model does not know its inputs and `inputs` is None.
    """
    _save(_Served(model, ModelInputs(model, inputs), {}, output_names), path)


def to_stock_tf(
    model: tf.keras.Model,
    path: Path,
    *,
    inputs: Any = None,
    tables: TableFormat = "float32",
    output_names: Sequence[str] | None = None,
) -> None:
    """Writes a SavedModel of stock TensorFlow ops only: any TensorFlow loads it, no library needed.

    It predicts what the model predicts, to 1e-6 if `tables` is "float32". Calling and signature are
    those of `to_tf`.

    Args:
        model: a built Keras model.
        path: folder to write.
        inputs: specs of what the model is called with; needed for subclassed models only.
        tables: how the rows of `SparseLinear` kernels are stored. "bfloat16" halves the file and
            "int8", with one scale a row, quarters it, at a cost in accuracy.
        output_names: as for `to_tf`.

    Raises:
        ValueError: the model does not know its inputs and `inputs` is None; or a part of it would
            still need an op of this package, as a `tf.function` of its own traced before does.
    """
    features = ModelInputs(model, inputs)
    stored = {} if tables == "float32" else stored_variables(model, tables)
    served = _Served(model, features, stored, output_names)
    with stock_ops(stored, [tf_variable(v) for v in model.variables]):
        for function in (served.__call__, served.serve):
            _require_stock(function.get_concrete_function())
        _save(served, path)


class _Served(tf.Module):
    """What is saved: the functions, and what they read.

    Not the model itself: tracking it would save Keras' own functions, made for dense inputs.
    """

    def __init__(
        self,
        model: Any,
        features: ModelInputs,
        tables: dict[Any, Any],
        output_names: Sequence[str] | None,
    ) -> None:
        super().__init__()
        variables = [tf_variable(v) for v in model.variables]
        self.weights = [v for v in variables if v.ref() not in tables]
        # A layer's state of varying size (boundaries) is in plain variables, not in its weights.
        self.state = [v for la in all_layers(model) for v in getattr(la, "state_variables", ())]
        self.tables = list(tables.values())

        @tf.function(input_signature=[features.specs])
        def call(inputs: Any) -> Any:
            return model(inputs, training=False)

        @tf.function(input_signature=[features.flat_specs()])
        def serve(tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            outputs = model(features.assemble(tensors), training=False)
            return _named(model, outputs, output_names)

        self.__call__ = call
        self.serve = serve


def _named(model: Any, outputs: Any, output_names: Sequence[str] | None) -> dict[str, tf.Tensor]:
    if isinstance(outputs, dict):
        return outputs
    flat = tf.nest.flatten(outputs)
    names = output_names or getattr(model, "output_names", None) or []
    if len(names) != len(flat):
        names = [f"output_{i}" for i in range(len(flat))]
    return dict(zip(names, flat, strict=True))


def _save(served: _Served, path: Path) -> None:
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)  # none are needed
    signatures = {"serving_default": served.serve}
    tf.saved_model.save(served, os.fspath(path), signatures=signatures, options=options)


def _require_stock(function: Any) -> None:
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    ours = sorted({n.op for n in nodes if n.op.startswith("Twml>")})
    if ours:
        raise ValueError(
            f"the model still runs {', '.join(ours)}: a tf.function of its own was traced before "
            "the export; call its Python function instead, or build the model anew"
        )
