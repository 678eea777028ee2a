"""All differences between Keras 2 and Keras 3. `tf.keras` is whichever is active."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops._keras_classes import PACKAGE

# The version of the package behind tf.keras, keras or tf_keras; some tf.keras have no __version__.
VERSION: str = importlib.metadata.version(tf.keras.Model.__module__.partition(".")[0])
KERAS_3: bool = VERSION.startswith("3.")

AUTOGRAPH: bool = not KERAS_3
"""Argument `autograph` of functions that call a model and are plain Python themselves.

Keras 2 converts the Python control flow of a user's layer if AutoGraph converts the function that
calls the model. Keras 3 never does, so converting the function would only take time.
"""

serializable = tf.keras.utils.register_keras_serializable(package=PACKAGE)


def no_autocast() -> dict[str, Any]:
    """The `add_weight` argument that exempts a weight from mixed precision."""
    return {"autocast": False} if KERAS_3 else {"experimental_autocast": False}


def optimizer_takes(option: str) -> bool:
    """Whether the constructor of the running Keras' optimizers has the argument `option`."""
    classes = tf.keras.optimizers.Optimizer.__mro__
    return any(option in inspect.signature(c.__init__).parameters for c in classes)


def scaled_loss(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
    """The loss of a custom training step, multiplied as `apply_gradients` of the optimizer expects.

    Args:
        optimizer: That of the step.
        loss: Scalar.

    Returns:
        Scalar; in Keras 2, whose `apply_gradients` does not divide, the loss itself.
    """
    return optimizer.scale_loss(loss) if KERAS_3 else loss


_scopes: Any = importlib.import_module(tf.keras.StatelessScope.__module__) if KERAS_3 else None
_symbolic: Any = importlib.import_module(tf.keras.SymbolicScope.__module__) if KERAS_3 else None


def is_built(optimizer: Any) -> bool:
    """Whether an optimizer has its slots, which Keras makes in the first step."""
    return bool(getattr(optimizer, "built" if KERAS_3 else "_built", False))


def updating_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers that update variables, within any wrappers.

    Args:
        optimizer: one of them, a `LossScaleOptimizer` around some, or a `CompositeOptimizer`.
    """
    if hasattr(optimizer, "inner_optimizer"):  # of a LossScaleOptimizer
        return updating_optimizers(optimizer.inner_optimizer)
    if hasattr(optimizer, "all_optimizers"):  # of a CompositeOptimizer
        return [o for part in optimizer.all_optimizers for o in updating_optimizers(part)]
    return [optimizer]


def updating_optimizer_of(optimizer: Any, variable: Any) -> Any:
    """The one of `updating_optimizers` that updates a variable."""
    if hasattr(optimizer, "inner_optimizer"):
        return updating_optimizer_of(optimizer.inner_optimizer, variable)
    if hasattr(optimizer, "optimizer_of"):
        return updating_optimizer_of(optimizer.optimizer_of(variable), variable)
    return optimizer


def before_updates(check: Callable[[Any, Sequence[Any]], None]) -> None:
    """Calls a function whenever a Keras optimizer that is not of this package updates variables.

    In a `tf.function` that is when the function is traced. Keras asks nobody else before an update,
    so this replaces a method of its optimizers' base class.

    Args:
        check: Takes the optimizer, which is not a wrapper of another, and the variables.
    """
    bases = [tf.keras.optimizers.Optimizer]
    if not KERAS_3:
        bases.append(tf.keras.optimizers.legacy.Optimizer)
    for base in bases:
        if KERAS_3:
            base.apply = _checked_apply(base.apply, check)
        else:
            base.apply_gradients = _checked_apply_gradients(base.apply_gradients, check)


def _checked_apply(method: Any, check: Any) -> Any:
    @functools.wraps(method)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if _is_foreign(self):
            check(self, trainable_variables or getattr(self, "_trainable_variables", ()))
        return method(self, grads, trainable_variables)

    return apply


def _checked_apply_gradients(method: Any, check: Any) -> Any:
    @functools.wraps(method)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if _is_foreign(self):
            check(self, [variable for _, variable in pairs])
        return method(self, pairs, *args, **kwargs)

    return apply_gradients


def _is_foreign(optimizer: Any) -> bool:
    ours = any(c.__module__.partition(".")[0] == "twml_ops" for c in type(optimizer).__mro__)
    return not ours and not hasattr(optimizer, "inner_optimizer")


def updates_only_rows(optimizer: Any) -> bool:
    """Whether an optimizer of Keras updates only the rows that a sparse gradient has."""
    name = type(optimizer).__name__
    if KERAS_3:
        return name == "SGD" and not optimizer.momentum
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        return name in ("SGD", "Adagrad", "Ftrl")
    return name == "Adagrad"


def in_stateless_scope() -> bool:
    """Whether a `StatelessScope` of Keras 3 is active, as within `stateless_call`."""
    return KERAS_3 and _scopes.in_stateless_scope()


def stateless_value(variable: Any) -> tf.Tensor | None:
    """The value that the active `StatelessScope` has for a variable.

    `tf.convert_to_tensor` respects the scope, but the variable's resource handle does not.

    Args:
        variable: A variable of Keras or TensorFlow.

    Returns:
        The value, or None if no scope is active or the scope has none for the variable. A variable
        that Keras initializes after the scope has its initial value.
    """
    if not in_stateless_scope():
        return None
    value = _scopes.get_stateless_scope().get_current_value(variable)
    if value is None and getattr(variable, "_value", variable) is None:
        return tf.convert_to_tensor(variable)
    return value


def in_symbolic_build() -> bool:
    """Whether Keras calls layers with placeholders of graphs, to find shapes or to create weights.

    A subclassed model of a `.keras` file is built so. The file has the shapes of its inputs only:
    all placeholders are dense floats, also of ids, ragged tensors and sparse tensors.
    """
    if tf.executing_eagerly():
        return False
    if KERAS_3:
        return bool(_symbolic.in_symbolic_scope())
    return getattr(tf.compat.v1.get_default_graph(), "name", None) == "build_graph"


def is_of_symbolic_build(tensor: Any) -> bool:
    """Whether a tensor is a float of a symbolic build, which may stand for one of any type."""
    return isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and in_symbolic_build()


def as_declared(tensor: Any, dtype: tf.DType) -> Any:
    """An input of a layer; in a symbolic build one of the type that it has in a call with data."""
    if not is_of_symbolic_build(tensor):
        return tensor
    return tf.strings.as_string(tensor) if dtype == tf.string else tf.cast(tensor, dtype)


def assign_slot(variable: Any, position: tf.Tensor, value: tf.Tensor) -> None:
    """Writes one slot of a variable, without a copy of the others where its place allows that.

    Args:
        variable: A variable of Keras or TensorFlow.
        position: Integer scalar, of the slot along the first axis.
        value: What the slot becomes.
    """
    stored = getattr(variable, "_value", variable)
    of_replicas = tf.distribute.in_cross_replica_context() and hasattr(stored, "values")
    if in_stateless_scope() or of_replicas or not isinstance(stored, tf.Variable):
        slots = tf.convert_to_tensor(variable)
        variable.assign(tf.tensor_scatter_nd_update(slots, [[position]], value[tf.newaxis]))
        return
    begin = position[tf.newaxis]
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=stored.handle,
        begin=begin,
        end=begin + 1,
        strides=tf.ones_like(begin),
        value=value[tf.newaxis],
    )


if KERAS_3:

    class _ScopedVariable(tf.keras.Variable):
        """A variable whose value is created within `scope()`.

        For a layer of a model that is built by tracing, Keras creates the value later than in
        `build`.
        """

        def __init__(self, scope: Callable[[], Any], **kwargs: Any) -> None:
            self._scope = scope
            super().__init__(**kwargs)

        def _initialize(self, value: Any) -> None:
            with self._scope():
                super()._initialize(value)


def add_weight_in_scope(
    layer: Any, scope: Callable[[], Any], *, initializer: Any, **kwargs: Any
) -> Any:
    """Calls `layer.add_weight` such that the value is created within `scope()`.

    Call it in the layer's `build`. The weight is exempt from mixed precision.

    Args:
        layer: The layer that gets the weight.
        scope: Returns a context manager.
        initializer: A Keras initializer, or a function of shape and dtype.
        **kwargs: name, shape, dtype and trainable, as for `add_weight`.

    Returns:
        The weight.
    """
    if not KERAS_3:
        with scope():
            return layer.add_weight(initializer=initializer, **kwargs, **no_autocast())
    initializer = tf.keras.initializers.get(initializer)
    variable = _ScopedVariable(scope, initializer=initializer, **kwargs, **no_autocast())
    layer._track_variable(variable)  # `add_weight` does this too, but only creates its own class
    return variable


def symbolic_inputs(model: Any) -> Any:
    """The structure of symbolic input tensors of a functional model; None for other models."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return None
    try:
        return model.input
    except (AttributeError, ValueError):  # a Sequential model of Keras 3
        return inputs[0] if len(inputs) == 1 else inputs


def symbolic_outputs(model: Any) -> dict[str, Any]:
    """The symbolic output tensors of a functional model by name, in the order of `model.outputs`.

    A model that returns a mapping names its outputs by the keys. Names that Keras has given twice
    are replaced by output_0, output_1, ….
    """
    try:
        structure = model.output
    except (AttributeError, ValueError):
        structure = None
    if isinstance(structure, Mapping) and len(structure) == len(model.outputs):
        by_key = {_key(tensor): str(name) for name, tensor in structure.items()}
        names = [by_key.get(_key(tensor), "") for tensor in model.outputs]
    else:
        names = [str(name) for name in getattr(model, "output_names", [])]
    if len(set(names)) != len(model.outputs) or "" in names:
        names = [f"output_{i}" for i in range(len(model.outputs))]
    return dict(zip(names, model.outputs, strict=True))


def input_spec(tensor: Any) -> Any:
    """The `tf.TypeSpec` of a symbolic input of a model: dense, ragged or sparse."""
    if not KERAS_3:
        spec = tensor.type_spec
        if isinstance(spec, tf.RaggedTensorSpec):  # drops the row_splits type of the first input
            return tf.RaggedTensorSpec(spec.shape, spec.dtype, spec.ragged_rank)
        return spec
    if getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(tensor.shape, tensor.dtype)
    if getattr(tensor, "ragged", False):
        return tf.RaggedTensorSpec(tensor.shape, tensor.dtype, 1)
    return tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name)


def all_layers(model: Any) -> list[Any]:
    """All layers of `model`, including nested ones."""
    return [layer for layer in model._flatten_layers() if layer is not model]


def trained_layers(model: Any) -> list[Any]:
    """The layers of `model`, and itself, that are not frozen, so that their own weights train.

    Keras 3 asks the layer that has a weight; Keras 2 asks the layers around it as well.
    """
    if not model.trainable:
        return []
    if KERAS_3:
        return [model, *(layer for layer in all_layers(model) if layer.trainable)]
    inner = model._flatten_layers(recursive=False, include_self=False)
    return [model, *(found for layer in inner for found in trained_layers(layer))]


def direct_variables(layer: Any) -> list[Any]:
    """The weights of `layer` without the weights of nested layers, trainable ones first."""
    if KERAS_3:
        return [*layer._trainable_variables, *layer._non_trainable_variables]
    return [*layer._trainable_weights, *layer._non_trainable_weights]


def keep_random_state_in_variables() -> None:
    """Keras 2: random layers made from now on keep their state in a variable, as in Keras 3."""
    if not KERAS_3:
        tf.keras.backend.experimental.enable_tf_random_generator()


def holds_random_state(value: Any) -> bool:
    """Whether an object is a generator of random numbers of Keras, with variables as attributes."""
    if KERAS_3:
        return isinstance(value, tf.keras.random.SeedGenerator)
    return type(value).__name__ == "RandomGenerator"


def random_states(model: Any) -> list[Any]:
    """The variables with the random state of the layers of `model`, in the order of its layers.

    With Keras 2 the variables exist after `keep_random_state_in_variables` and the first call of
    the layer.
    """
    found: dict[int, Any] = {}
    for layer in all_layers(model):
        for value in vars(layer).values():
            if not holds_random_state(value):
                continue
            owner = value if KERAS_3 else getattr(value, "_generator", None)
            if owner is not None:
                state = owner.state
                found.setdefault(id(state), state)
    return list(found.values())


class LayerCall(NamedTuple):
    """One call of a layer in a functional model.

    Attributes:
        layer: The layer, or in Keras 3 any operation.
        inputs: Keys of the input tensors, in order.
        outputs: Keys of the output tensors.
        named: Keys of the input tensors by their names, if the first argument is a mapping.
        tensors: The output tensors.
        argument: The first argument, in its structure.
    """

    layer: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    named: dict[str, Any]
    tensors: tuple[Any, ...]
    argument: Any = None


def layer_calls(outputs: Any) -> tuple[list[LayerCall], list[Any]]:
    """The layer calls of a functional model in topological order.

    Args:
        outputs: The model's symbolic outputs.

    Returns:
        `(calls, keys of the outputs)`. The call of an input layer has no inputs.
    """
    ordered: list[LayerCall] = []
    seen: set[Any] = set()

    def visit(tensor: Any) -> Any:
        layer, node_index, _ = tensor._keras_history
        if (id(layer), node_index) not in seen:
            seen.add((id(layer), node_index))
            node = layer._inbound_nodes[node_index]
            inputs = node.input_tensors if KERAS_3 else node.keras_inputs
            results = node.output_tensors if KERAS_3 else tf.nest.flatten(node.outputs)
            is_input = isinstance(layer, tf.keras.layers.InputLayer)
            arguments = () if is_input else tuple(visit(t) for t in inputs)
            first = None if is_input else _first_argument(node)
            keys = tuple(map(_key, results))
            named = _named_inputs(first)
            ordered.append(LayerCall(layer, arguments, keys, named, tuple(results), first))
        return _key(tensor)

    return ordered, [visit(t) for t in tf.nest.flatten(outputs)]


def input_specs(model: Any) -> dict[Any, Any]:
    """The `tf.TypeSpec` of each symbolic input of a model, by its key."""
    return {_key(t): input_spec(t) for t in tf.nest.flatten(symbolic_inputs(model))}


def clone_model(
    model: tf.keras.Model, clone_function: Callable[[Any], Any] | None = None
) -> tf.keras.Model:
    """Clones a model as `tf.keras.models.clone_model`, with ragged and sparse inputs as they are.

    Keras 3 makes dense inputs of them, which do not take the batches of the model.

    Args:
        model: A functional, sequential or subclassed model.
        clone_function: Returns the clone of a layer; None: a new layer of the same config.

    Returns:
        The model with new weights.
    """
    options: dict[str, Any] = {} if clone_function is None else {"clone_function": clone_function}
    inputs = symbolic_inputs(model) if KERAS_3 else None
    found = [] if inputs is None else tf.nest.flatten(inputs)
    if any(getattr(t, "ragged", False) or t.sparse for t in found):

        def input_like(tensor: Any) -> Any:
            kind = {"ragged": True} if getattr(tensor, "ragged", False) else {}
            kind |= {"sparse": True} if tensor.sparse else {}
            return tf.keras.Input(
                batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name, **kind
            )

        options["input_tensors"] = tf.nest.map_structure(input_like, inputs)
    return tf.keras.models.clone_model(model, **options)


def _first_argument(node: Any) -> Any:
    arguments = node.arguments if KERAS_3 else node
    positional = arguments.args if KERAS_3 else arguments.call_args
    keywords = arguments.kwargs if KERAS_3 else arguments.call_kwargs
    return next(iter([*positional, *keywords.values()]), None)


def _named_inputs(argument: Any) -> dict[str, Any]:
    """The keys of the tensors of a mapping that a layer is called with, by their names."""
    if not isinstance(argument, Mapping):
        return {}
    return {k: _key(t) for k, t in argument.items() if hasattr(t, "_keras_history")}


def _key(tensor: Any) -> Any:
    layer, node_index, tensor_index = tensor._keras_history
    return id(layer), node_index, tensor_index


def layers_with_hidden_random_state(model: Any) -> list[str]:
    """The random layers of Keras 2 whose state is in a kernel, not in a variable."""
    if KERAS_3:
        return []
    found = []
    for layer in all_layers(model):
        generator = getattr(layer, "_random_generator", None)
        hidden = getattr(generator, "_rng_type", None) == "legacy_stateful"
        if hidden and getattr(layer, "rate", 1) != 0:
            found.append(layer.name)
    return found


def before_first_step(model: Any, function: Callable[[Callable[[], None]], None]) -> None:
    """Calls a function once, before the first step of a `fit` that has begun.

    Call it in `on_train_begin` of a callback. Keras has reset the metrics by the first step.

    Args:
        model: The model that is trained.
        function: Called with a function `trace`, which traces a training step without running it.
            Then all variables exist that Keras creates in the first step.
    """
    train_function = model.train_function

    def first_step(iterator: Any) -> Any:
        model.train_function = train_function

        def trace() -> None:
            def step(iterator: Any) -> Any:
                return model.distribute_strategy.run(model.train_step, args=(next(iterator),))

            tf.function(step).get_concrete_function(iterator)

        function(trace)
        return train_function(iterator)

    model.train_function = first_step


def _build_from_the_first_replica(trainer: Any) -> None:
    """Keras 3: lets a model in a strategy be fitted to ragged and sparse batches.

    Before the first step Keras looks at the shapes of a batch, for which it takes the mean of the
    batches of the replicas. TensorFlow has no mean of ragged and sparse tensors. The batch of the
    first replica has the same shapes, but for the number of rows.

    Args:
        trainer: The class of Keras that has the method.
    """
    original = trainer._maybe_symbolic_build

    @functools.wraps(original)
    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is None or self._distribute_strategy is None:
            original(self, iterator, data_batch)
            return
        local = self._distribute_strategy.experimental_local_results
        for _, _, batches in iterator:
            data_batch = tf.nest.map_structure(lambda x: local(x)[0], next(batches))
            break
        original(self, None, data_batch)

    trainer._maybe_symbolic_build = build


if KERAS_3:
    for _class in tf.keras.Model.__mro__:
        if "_maybe_symbolic_build" in vars(_class):
            _build_from_the_first_replica(_class)
            break


def start_in_epoch(model: Any, step: int, steps_per_epoch: int, example: Callable[[], Any]) -> None:
    """Lets the first epoch of the next `fit` begin with a step other than the first one.

    The number of the epoch is the argument `initial_epoch` of `fit`. In Keras 2 the dataset must
    have no end, and `steps_per_epoch` must be an argument of `fit`. In Keras 3 the first iteration
    of the dataset has the rest of the epoch, and each other one a whole epoch.

    Args:
        model: The model that is trained.
        step: How many steps of the epoch have been done.
        steps_per_epoch: Steps in an epoch.
        example: Returns a batch. Keras 3 looks at one if the model is in a strategy, which would
            otherwise start an iteration of the dataset.
    """
    name = "_maybe_symbolic_build" if KERAS_3 else "_maybe_load_initial_counters_from_ckpt"
    original = getattr(model, name, None)
    if original is None:
        raise NotImplementedError(f"this version of Keras, {VERSION}, cannot start in an epoch")

    def counters(steps: Any, initial_epoch: int) -> tuple[int, int]:
        delattr(model, name)
        return initial_epoch, step

    def build(iterator: Any = None, data_batch: Any = None) -> None:
        delattr(model, name)
        if model._distribute_strategy is not None:
            original(data_batch=example())
        if step:
            _start_iterator_at(iterator, step, steps_per_epoch)

    setattr(model, name, build if KERAS_3 else counters)


def _start_iterator_at(epochs: Any, step: int, steps_per_epoch: int) -> None:
    """Keras 3: shortens the first epoch of an iterator over epochs."""
    enumerate_steps, reset = epochs._enumerate_iterator, epochs.reset

    def reset_and_set_length() -> None:
        reset()
        epochs._num_batches = steps_per_epoch

    def rest_of_epoch() -> Any:
        del epochs._enumerate_iterator
        for begin, end, iterator in enumerate_steps():
            if begin + step >= steps_per_epoch:
                return
            yield begin + step, end + step, iterator

    epochs.reset, epochs._enumerate_iterator = reset_and_set_length, rest_of_epoch
