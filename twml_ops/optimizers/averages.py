"""Averaged weights (`use_ema`) in a model, for its evaluation and for files, and out again."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops._keras import KERAS_3, is_built, updating_optimizer_of
from twml_ops.ops._tape import tf_variable
from twml_ops.optimizers._moving_average import MovingAverage
from twml_ops.optimizers.sparse_optimizer import SparseOptimizer


@contextlib.contextmanager
def averaged_weights(model: tf.keras.Model, optimizer: Any = None) -> Iterator[None]:
    """A context manager in which the trainable weights of a model have their averaged values.

    Afterwards the model and its optimizer are as they were, bit for bit. Evaluate, export or save
    the model in the block, but do not train it. A file that is saved in the block continues, where
    it is loaded, from the averages. Entering costs one pass over all weights, and the memory of a
    second copy of them. Within a block of the same model nothing happens.

    Args:
        model: any Keras model.
        optimizer: the one that trains it; by default the one that it was compiled with. Optimizers
            of Keras and parts of a `CompositeOptimizer` may have averages, too. Weights that are
            trained without `use_ema` are not changed.

    Yields:
        Nothing.

    Raises:
        ValueError: the model is not compiled, or its optimizer has no `use_ema`.
        RuntimeError: the model was trained in the block. It has the weights of before.
    """
    if model in _training_weights:
        yield
        return
    _swap_in(model, optimizer)
    try:
        yield
    finally:
        _swap_out(model)


@contextlib.contextmanager
def training_weights(model: tf.keras.Model) -> Iterator[None]:
    """The weights of a model are the trained ones, also in `averaged_weights`.

    Args:
        model: any Keras model.

    Yields:
        Nothing.
    """
    if model not in _training_weights:
        yield
        return
    optimizer = _training_weights[model].optimizer
    _swap_out(model)
    try:
        yield
    finally:
        _swap_in(model, optimizer)


def build_averages(model: tf.keras.Model) -> None:
    """Builds the optimizer of a compiled model if it has averages, which files may then restore.

    Args:
        model: any Keras model.
    """
    optimizer: Any = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    owners = [updating_optimizer_of(optimizer, v) for v in model.trainable_variables]
    if any(getattr(owner, "use_ema", False) for owner in owners) and not is_built(optimizer):
        strategy = getattr(model, "distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer.build(model.trainable_variables)


class SwapEMAWeights(tf.keras.callbacks.Callback):
    """Evaluates a model in `fit`, `evaluate` and `predict` with its averaged weights.

    It has the arguments of the callback of Keras 3, and also works with Keras 2, with a
    `CompositeOptimizer` and with bfloat16 tables. It does not change a bit of the training.

        model.compile(optimizers.LazyAdam(0.01, use_ema=True, ema_momentum=0.999), ...)
        model.fit(data, validation_data=validation, callbacks=[optimizers.SwapEMAWeights()])

    Args:
        swap_on_epoch: whether the model has the averages from the end of an epoch to the beginning
            of the next, for other callbacks such as `ModelCheckpoint`, which come after this one.
            `checkpoint.CheckpointCallback` saves the weights that are trained nevertheless.
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__()
        self.swap_on_epoch = swap_on_epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Undoes what an interrupted evaluation has left.

        Args:
            logs: not used.
        """
        self._end()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Puts the trained weights back.

        Args:
            epoch: not used.
            logs: not used.
        """
        self._end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Puts the averages into the model, with `swap_on_epoch`.

        Args:
            epoch: not used.
            logs: not used.
        """
        if self.swap_on_epoch:
            self._begin()

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the averages in the model, where `fit` has put them.

        Args:
            logs: not used.
        """
        _training_weights.pop(self.model, None)

    def on_test_begin(self, logs: Any = None) -> None:
        """Puts the averages into the model.

        Args:
            logs: not used.
        """
        self._begin()

    def on_test_end(self, logs: Any = None) -> None:
        """Puts the trained weights back.

        Args:
            logs: not used.
        """
        self._end()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Puts the averages into the model.

        Args:
            logs: not used.
        """
        self._begin()

    def on_predict_end(self, logs: Any = None) -> None:
        """Puts the trained weights back.

        Args:
            logs: not used.
        """
        self._end()

    def _begin(self) -> None:
        if self.model not in _training_weights:
            _swap_in(self.model, None)

    def _end(self) -> None:
        if self.model in _training_weights:
            _swap_out(self.model)


class _Before(NamedTuple):
    """The weights of a model before averages were put into it.

    Attributes:
        optimizer: the optimizer of the model.
        values: variables of TensorFlow, and their values.
        steps: the optimizers with averages, and how many steps they had done.
    """

    optimizer: Any
    values: list[tuple[tf.Variable, tf.Tensor]]
    steps: list[tuple[Any, int]]


_training_weights: weakref.WeakKeyDictionary[Any, _Before] = weakref.WeakKeyDictionary()


def _swap_in(model: tf.keras.Model, optimizer: Any) -> None:
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    if optimizer is None:
        raise ValueError("the model must be compiled, or optimizer given, got neither")
    owners = [(v, updating_optimizer_of(optimizer, v)) for v in model.trainable_variables]
    with_averages = {id(o): o for _, o in owners if getattr(o, "use_ema", False)}
    if not with_averages:
        raise ValueError(
            f"{type(optimizer).__name__} keeps no averaged weights: make it with use_ema=True"
        )
    before = _Before(optimizer, [], [(o, _steps_of(o)) for o in with_averages.values()])
    for variable, owner in owners:
        if id(owner) in with_averages and is_built(owner):
            for copy, value in _with_averages(variable, owner):
                before.values.append((copy, copy.read_value()))
                _assign(copy, value)
    _training_weights[model] = before


def _swap_out(model: tf.keras.Model) -> None:
    before = _training_weights.pop(model)
    for variable, value in before.values:
        _assign(variable, value)
    if any(_steps_of(optimizer) != steps for optimizer, steps in before.steps):
        raise RuntimeError(
            "the model was trained while it had its averaged weights; it has the weights of before"
        )


def _steps_of(optimizer: Any) -> int:
    return int(tf.convert_to_tensor(optimizer.iterations))


def _with_averages(variable: Any, optimizer: Any) -> Iterator[tuple[tf.Variable, tf.Tensor]]:
    """The variables that a swap changes, on all replicas, and the values that it gives them."""
    if not isinstance(optimizer, SparseOptimizer):
        average = optimizer._model_variables_moving_average[_index_of(optimizer, variable)]
        for copy, of_copy in zip(_copies(variable), _copies(average), strict=True):
            yield copy, tf.cast(of_copy.read_value(), copy.dtype)
        return
    step = optimizer.average_step()
    parts = [_copies(part) for part in optimizer.average_of(variable)]
    for average in (MovingAverage(*copies) for copies in zip(*parts, strict=True)):
        # The average counts as advanced, so that a file that is saved has a state of training.
        values, steps = average.current(step, optimizer.ema_momentum)
        yield average.variable, tf.cast(values, average.variable.dtype)
        yield average.values, values
        yield average.steps, steps


def _index_of(optimizer: Any, variable: Any) -> int:
    if KERAS_3:
        return int(optimizer._get_variable_index(variable))
    return int(optimizer._index_dict[optimizer._var_key(variable)])


def _copies(variable: Any) -> Sequence[tf.Variable]:
    of_tf = tf_variable(variable)
    return getattr(of_tf, "values", (of_tf,))


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
    # Unlike the method `assign`, it does not mark rows as changed: what is put back is the buffer
    # of before, so that checkpoints of changed rows need nothing.
    with tf.device(variable.device):
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
