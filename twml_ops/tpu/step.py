"""A model's whole training step as one XLA program, and the layer that an op comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import _keras, ops, optimizers

# The shape of a result, with a bound in place of a size.
_DYNAMIC = re.compile(r"= [^=]*\[[^\]]*<=\d")
_OP_NAME = re.compile(r'op_name="([^"]+)"')
_RAISED = re.compile(r"\w*(Error|Exception): ")
_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")


class CompileProblem(NamedTuple):
    """An op that does not compile.

    Attributes:
        layer: The name of the layer that it comes from; None if that is unknown.
        why: The reason.
    """

    layer: str | None
    why: str


class NotCompilableError(Exception):
    """A step cannot be compiled to a program with static shapes.

    Args:
        problem: What does not compile, and where.

    Attributes:
        problem: What does not compile, and where.
    """

    def __init__(self, problem: CompileProblem) -> None:
        super().__init__(problem.why)
        self.problem = problem


def zero_batch(model: Any, batch_size: int, max_entries: int = 32) -> tuple[Any, tf.Tensor]:
    """Returns a batch of zeros with the shapes of padded features and of labels.

    Args:
        model: A functional model with dense, padded or ragged inputs and one output [B, ...].
        batch_size: B, the number of examples.
        max_entries: Entries of an example, in inputs whose width is unknown.

    Returns:
        The features, in the structure of the model's inputs, and the labels.

    Raises:
        ValueError: The model has no symbolic inputs, or one of them is sparse.
    """
    symbolic = _keras.symbolic_inputs(model)
    if symbolic is None:
        raise ValueError(
            "model must be a functional or Sequential model, whose inputs are known, got "
            f"{type(model).__name__}"
        )

    def zeros(tensor: Any) -> tf.Tensor:
        spec = _keras.input_spec(tensor)
        if isinstance(spec, tf.SparseTensorSpec):
            raise ValueError(
                f"input {tensor.name!r} is sparse: make it a padded pair of dense inputs, "
                "as data.pad_to_static yields"
            )
        shape = [max_entries if size is None else size for size in spec.shape[1:]]
        return tf.zeros([batch_size, *shape], spec.dtype)

    output = model.outputs[0]
    shape = [1 if size is None else size for size in output.shape[1:]]
    return tf.nest.map_structure(zeros, symbolic), tf.zeros([batch_size, *shape])


def prepare_model(model: Any) -> None:
    """Compiles a Keras model unless it is compiled, and builds its optimizer.

    Args:
        model: The model.
    """
    if getattr(model, "optimizer", None) is None:
        model.compile(optimizers.Adagrad(0.01), "binary_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)


def training_step(model: Any) -> Any:
    """Returns a training step that XLA compiles as one program.

    It computes the loss and the gradients and updates all weights, but no metrics. Tables are
    updated by ops that XLA supports, see `ops.xla_compatible`.

    Args:
        model: A compiled Keras model whose optimizer is built, with padded batches as inputs.

    Returns:
        A `tf.function` `(features, labels) -> loss`.
    """

    @tf.function(jit_compile=True)
    def step(features: Any, labels: tf.Tensor) -> tf.Tensor:
        with ops.xla_compatible():
            with tf.GradientTape() as tape:
                predictions = model(features, training=True)
                loss = model.compute_loss(x=features, y=labels, y_pred=predictions)
                scaled = _keras.scaled_loss(model.optimizer, loss)
            variables = model.trainable_variables
            gradients = tape.gradient(scaled, variables)
            model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


def lower_to_hlo(step: Any, model: Any, batch: tuple[Any, tf.Tensor]) -> bytes:
    """Lowers a step to a serialized HLO module.

    Args:
        step: A function that `training_step` has returned.
        model: Its model.
        batch: Features and labels of the shapes to compile for.

    Returns:
        A serialized `HloModuleProto`.

    Raises:
        NotCompilableError: An op has no XLA form, or the shape of a result depends on the data.
    """
    layers = _keras.all_layers(model)
    try:
        graph = step.get_concrete_function(*batch).graph
    except Exception as e:
        raise NotCompilableError(
            CompileProblem(_layer_in_traceback(e, layers), _first_lines(e))
        ) from e
    try:
        ir = step.experimental_get_compiler_ir(*batch)
        text = ir(stage="hlo")
        dynamic = next((line for line in text.splitlines() if _DYNAMIC.search(line)), None)
        if dynamic is None:
            return ir(stage="hlo_serialized")
    except Exception as e:
        text = str(e)
        layer = find_layer([*_NODE.findall(text), text], layers) or _unknown_shape(graph, layers)
        raise NotCompilableError(CompileProblem(layer, _first_lines(e))) from e
    names = _OP_NAME.findall(dynamic)
    layer = _unknown_shape(graph, layers) or find_layer(names, layers)
    op = f" ({names[0]})" if names else ""
    raise NotCompilableError(
        CompileProblem(layer, f"the shape of a result depends on the data{op}")
    )


def find_layer(names: Iterable[str], layers: Iterable[Any]) -> str | None:
    """Finds the layer that an op comes from, by the names that TensorFlow gives to ops.

    Args:
        names: Names of ops, in the order of preference.
        layers: The layers of the model.

    Returns:
        The name of the innermost layer in the first name that has one; None if no name has one.
    """
    known = {layer.name for layer in layers if not isinstance(layer, tf.keras.layers.InputLayer)}
    for name in names:
        for part in reversed(re.split(r"[/\s\"':]+", name)):
            for candidate in (part, re.sub(r"_\d+$", "", part)):
                if candidate in known:
                    return candidate
    return None


def _unknown_shape(graph: Any, layers: Iterable[Any]) -> str | None:
    """Returns the layer of the first op with a result of unknown shape."""
    for op in graph.get_operations():
        for output in op.outputs:
            plain = output.dtype not in (tf.resource, tf.variant)
            if plain and not output.shape.is_fully_defined():
                layer = find_layer([op.name], layers)
                if layer is not None:
                    return layer
    return None


def _layer_in_traceback(error: BaseException, layers: Iterable[Any]) -> str | None:
    """Returns the layer that has raised: the innermost frame that is a method of a layer."""
    ours = {id(layer): layer.name for layer in layers}
    found, trace = None, error.__traceback__
    while trace is not None:
        found = ours.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found or find_layer([str(error)], layers)


def _first_lines(error: BaseException) -> str:
    text = re.sub(r"\x1b\[\d*m", "", str(error))  # bold type in Keras' messages
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The error follows the lines of user code.
    raised = [i for i, line in enumerate(lines) if _RAISED.match(line)]
    start = raised[-1] if raised else 0
    return " ".join(lines[start : start + 3])[:600] or type(error).__name__
