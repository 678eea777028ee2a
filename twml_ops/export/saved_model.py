"""SavedModels of Keras models, with the ops of this package or of stock TensorFlow ops."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from twml_ops._keras import AUTOGRAPH, all_layers
from twml_ops.data import Schema
from twml_ops.export.model_inputs import ModelInputs
from twml_ops.export.raw_columns import RawColumns
from twml_ops.export.tables import StoredVariable, TableFormat, stored_variables
from twml_ops.models import layout_of
from twml_ops.ops import stock
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable
from twml_ops.ops.stock import check
from twml_ops.ops.stock.sparse_linear import multiply_each, sparse_product

Path = str | os.PathLike[str]


def to_tf(
    model: tf.keras.Model,
    path: Path,
    *,
    inputs: Any = None,
    output_names: Sequence[str] | None = None,
    schema: Schema | None = None,
) -> None:
    """Writes a SavedModel with the ops of this package; `import twml_ops.ops` before it is loaded.

    Otherwise TensorFlow says "Op type not registered 'Twml>...'". `to_stock_tf` needs no package.

    On a machine with a GPU, load it in the block `tf.device("CPU:0")`, or with
    `tf.saved_model.LoadOptions(experimental_variable_policy="save_variable_devices")`, which puts
    each variable where it was when it was saved. TensorFlow puts it on the GPU otherwise.

    The loaded object is called like the model. Its `serving_default` signature takes flat tensors:
    a ragged input `x` becomes `x` and `x_row_splits`; ragged inputs `g_ids` and `g_values` that a
    layer takes as one batch share one `g_row_splits`; a sparse input `x` becomes `x_ids`,
    `x_values` and `x_row_splits`; dense inputs stay as they are. It returns the outputs by name.

    Args:
        model: A built Keras model.
        path: Folder to write.
        inputs: Specs of the model's inputs (`tf.TensorSpec`, `tf.RaggedTensorSpec`,
            `tf.SparseTensorSpec`, in the structure that the model is called with); only needed for
            subclassed models.
        output_names: Names of the signature's outputs; None: the names of the model's outputs. A
            dict of outputs keeps its keys.
        schema: The features of the model, if it takes batches of `data.Source.dataset`. Then
            `serving_default`, which is also called `raw`, takes raw columns and hashes categories
            in the graph, and the flat tensors go to the signature `features`. Raw columns are a
            tensor [B] for each column, by its name with underscores for
            characters other than letters and digits: float32, NaN being a missing number, or
            strings, "" being a missing category; a bag `tags` is `tags` [K] and `tags_row_splits`
            [B + 1]. A third signature, `tf_example`, takes serialized `tf.Example`s [B], in which
            a feature that is not there is a missing value.

    Raises:
        ValueError: The model has no symbolic inputs and `inputs` is None, two inputs need tensors
            of one name, the model does not take the features of `schema`, or these are hashed by
            version 1.
    """
    served = _Served(model, ModelInputs(model, inputs), {}, output_names, _raw(model, schema))
    _save(served, path, served.serving(), keeps_devices=True)


def to_stock_tf(
    model: tf.keras.Model,
    path: Path,
    *,
    inputs: Any = None,
    tables: TableFormat = "float32",
    output_names: Sequence[str] | None = None,
    schema: Schema | None = None,
) -> None:
    """Writes a SavedModel of stock TensorFlow ops, which any TensorFlow loads.

    Its predictions agree with the model's predictions up to 1e-6 if `tables` is "float32". It is
    called like the SavedModel of `to_tf` and has the same signature.

    Args:
        model: A built Keras model.
        path: Folder to write.
        inputs: As for `to_tf`.
        tables: How the rows of `SparseLinear` kernels are stored. "bfloat16" halves the file;
            "int8", with one scale for each row, quarters it. Both reduce accuracy.
        output_names: As for `to_tf`.
        schema: As for `to_tf`.

    Raises:
        ValueError: As for `to_tf`; or the model calls a concrete function that was traced before
            and contains an op of this package.
    """
    features = ModelInputs(model, inputs)
    stored = {} if tables == "float32" else stored_variables(model, tables)
    refused: list[ValueError] = []

    def check_graph(graph: tf.Graph) -> None:
        try:
            _require_stock(graph)
        except ValueError as e:
            refused.append(e)
            raise

    served = _Served(model, features, stored, output_names, _raw(model, schema), check_graph)
    with _stock_ops(stored, [tf_variable(v) for v in model.variables]):
        try:
            _save(served, path, served.serving())
        except ValueError:
            if refused:  # without the lines that AutoGraph adds
                raise refused[0] from None
            raise


class _Served(tf.Module):
    """The object that is saved: functions and the variables that they read.

    It does not track the model, since that would also save Keras' own functions, which take dense
    inputs.

    Nothing is traced before `tf.saved_model.save`, which would trace it again. What checks the
    graphs does so at the end of their traces, before a file is written.
    """

    def __init__(
        self,
        model: Any,
        features: ModelInputs,
        tables: dict[Any, Any],
        output_names: Sequence[str] | None,
        raw: RawColumns | None,
        check_graph: Callable[[tf.Graph], object] = lambda graph: None,
    ) -> None:
        super().__init__()
        variables = [tf_variable(v) for v in model.variables]
        self.weights = [v for v in variables if v.ref() not in tables]
        # State of varying size, such as boundaries, is in plain variables, not in the weights.
        self.state = [v for la in all_layers(model) for v in getattr(la, "state_variables", ())]
        self.tables = list(tables.values())

        function = functools.partial(tf.function, autograph=AUTOGRAPH)

        @function(input_signature=[features.specs])
        def call(inputs: Any) -> Any:
            outputs = model(inputs, training=False)
            check_graph(tf.compat.v1.get_default_graph())
            return outputs

        @function(input_signature=[features.flat_specs()])
        def serve(tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return predict(features.assemble(tensors))

        def predict(inputs: Any) -> dict[str, tf.Tensor]:
            outputs = _named(model, call(inputs), output_names)
            check_graph(tf.compat.v1.get_default_graph())
            return outputs

        self.__call__ = call
        serving = {"serving_default": serve}
        if raw is not None:
            columns = raw

            @function(input_signature=[{s.name: s for s in raw.specs().values()}])
            def serve_raw(tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
                return predict(features.select(columns.features(columns.by_column(tensors))))

            @function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
            def serve_examples(examples: tf.Tensor) -> dict[str, tf.Tensor]:
                return predict(features.select(columns.features(columns.parse(examples))))

            serving = {
                "serving_default": serve_raw,
                "raw": serve_raw,
                "tf_example": serve_examples,
                "features": serve,
            }
        # As an attribute they would be saved, and traced, beside the signatures.
        self.serving: Callable[[], dict[str, Any]] = lambda: serving


def _raw(model: Any, schema: Schema | None) -> RawColumns | None:
    return None if schema is None else RawColumns(schema, layout_of(model))


@tf.autograph.experimental.do_not_convert
def _named(model: Any, outputs: Any, output_names: Sequence[str] | None) -> dict[str, tf.Tensor]:
    if isinstance(outputs, dict):
        return outputs
    flat = tf.nest.flatten(outputs)
    names = output_names or getattr(model, "output_names", None) or []
    if len(names) != len(flat):
        names = [f"output_{i}" for i in range(len(flat))]
    return dict(zip(names, flat, strict=True))


def _save(
    served: _Served, path: Path, signatures: dict[str, Any], keeps_devices: bool = False
) -> None:
    # Readers that want to can then have the variables of our ops on the host, like these ops.
    policy = "save_variable_devices" if keeps_devices else None
    options = tf.saved_model.SaveOptions(
        experimental_custom_gradients=False, experimental_variable_policy=policy
    )
    tf.saved_model.save(served, os.fspath(path), signatures=signatures, options=options)


def _require_stock(traced: tf.Graph) -> None:
    graph = traced.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    ours = sorted({n.op for n in nodes if n.op.startswith("Twml>")})
    if ours:
        raise ValueError(
            f"the model contains {', '.join(ours)}: one of its own functions was traced before the "
            "export; call its Python function instead, or build the model anew"
        )


@contextlib.contextmanager
def _stock_ops(tables: dict[Any, StoredVariable], variables: list[Any]) -> Iterator[None]:
    """Traces functions with stock ops in the block, which need no gradients and get valid batches.

    Args:
        tables: `ref()` of a table's variable → the stored table that is read instead.
        variables: All variables of the model, among which may be bfloat16 tables.
    """
    dtypes = {id(v.handle): v.dtype for v in variables}
    by_handle = {id(ref.deref().handle): stored for ref, stored in tables.items()}

    def resource_sparse_linear(
        ids: tf.Tensor,
        values: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor,
        binary: bool = False,
    ) -> tf.Tensor:
        stored = by_handle.get(id(weights))
        if stored is None:
            # Reading the whole table costs nothing, since it makes no copy.
            table = tf.raw_ops.ReadVariableOp(resource=weights, dtype=dtypes[id(weights)])
            if table.dtype == tf.float32:
                return sparse_product(ids, values, row_splits, table, binary)
            rows = tf.cast(tf.gather(table, ids), tf.float32)
            return sparse_product(tf.range(tf.size(ids)), values, row_splits, rows, binary)
        rows, scale = stored.gather(ids)
        if scale is not None:
            values, binary = (scale if binary else values * scale), False
        return sparse_product(tf.range(tf.size(ids)), values, row_splits, rows, binary)

    replaced = {
        "twml_resource_sparse_linear": resource_sparse_linear,
        "twml_grouped_sparse_linear": partial(multiply_each, resource_sparse_linear),
    }
    ops = SimpleNamespace(**{**vars(stock.library), **replaced})
    with check.assume_valid(), library.override(ops):
        yield
