"""A model's whole training step as one program, and which layer a part of it came from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import _keras, ops, optimizers

_DYNAMIC = re.compile(r"= [^=]*\[[^\]]*<=\d")  # a result's shape with a bound in place of a size
_OP_NAME = re.compile(r'op_name="([^"]+)"')
_RAISED = re.compile(r"\w*(Error|Exception): ")
_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")


class CompileProblem(NamedTuple):
    """What does not compile.

    Attributes:
        layer: name of the layer it came from; None: it cannot be told.
        why: in words.
    """

    layer: str | None
    why: str


class NotCompilableError(Exception):
    """A step that does not become a program of static shapes.

    Attributes:
        problem: what and where.
    """

    def __init__(self, problem: CompileProblem) -> None:
        super().__init__(problem.why)
        self.problem = problem


def zero_batch(model: Any, batch_size: int, max_entries: int = 32) -> tuple[Any, tf.Tensor]:
    """Padded features as `model` takes them, and labels, all zeros: the shapes are what counts.

    Args:
        model: functional, of dense, padded or ragged inputs and one output [B, ...].
        batch_size: B.
        max_entries: M, for inputs that do not say it.

    Raises:
        ValueError: a model without symbolic inputs, or with inputs that have no padded form.
    """
    symbolic = _keras.symbolic_inputs(model)
    if symbolic is None:
        raise ValueError("model must be a functional or Sequential model, which knows its inputs")

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
    """Compiles a model that is not, and builds its optimizer."""
    if getattr(model, "optimizer", None) is None:
        model.compile(optimizers.Adagrad(0.01), "binary_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)


def training_step(model: Any) -> Any:
    """`(features, labels) -> loss`, compiled by XLA: forward, backward, and all updates.

    Metrics are left out. Tables are updated by what XLA knows: see `ops.xla_compatible`.

    Args:
        model: compiled and built, as by `prepare_model`; of padded batches.
    """

    @tf.function(jit_compile=True)
    def step(features: Any, labels: tf.Tensor) -> tf.Tensor:
        with ops.xla_compatible():
            with tf.GradientTape() as tape:
                predictions = model(features, training=True)
                loss = model.compute_loss(x=features, y=labels, y_pred=predictions)
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


def lower_to_hlo(step: Any, model: Any, batch: tuple[Any, tf.Tensor]) -> bytes:
    """The serialized HLO module of `step` for `batch`.

    Raises:
        NotCompilableError: it is none, or one whose shapes depend on the data.
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
    """The layer whose name is the innermost in the first of `names`, of ops, that has one."""
    known = {layer.name for layer in layers if not isinstance(layer, tf.keras.layers.InputLayer)}
    for name in names:
        for part in reversed(re.split(r"[/\s\"':]+", name)):
            for candidate in (part, re.sub(r"_\d+$", "", part)):
                if candidate in known:
                    return candidate
    return None


def _unknown_shape(graph: Any, layers: Iterable[Any]) -> str | None:
    """The layer of the first op whose result has a shape that TensorFlow does not know."""
    for op in graph.get_operations():
        for output in op.outputs:
            plain = output.dtype not in (tf.resource, tf.variant)
            if plain and not output.shape.is_fully_defined():
                layer = find_layer([op.name], layers)
                if layer is not None:
                    return layer
    return None


def _layer_in_traceback(error: BaseException, layers: Iterable[Any]) -> str | None:
    """The layer whose code raised: the innermost frame that is a method of one."""
    ours = {id(layer): layer.name for layer in layers}
    found, trace = None, error.__traceback__
    while trace is not None:
        found = ours.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found or find_layer([str(error)], layers)


def _first_lines(error: BaseException) -> str:
    text = re.sub(r"\x1b\[\d*m", "", str(error))  # Keras' bold type
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [i for i, line in enumerate(lines) if _RAISED.match(line)]  # behind user code's lines
    start = raised[-1] if raised else 0
    return " ".join(lines[start : start + 3])[:600] or type(error).__name__
