"""Different optimizers for different variables."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import tensorflow as tf

from twml_ops._keras import KERAS_3, serializable, updating_optimizers
from twml_ops.ops._tape import tf_variable
from twml_ops.optimizers.gradients import map_values
from twml_ops.optimizers.loss_scale import apply_if_finite


@serializable
class CompositeOptimizer(tf.keras.optimizers.Optimizer):
    """Updates each variable with the first optimizer whose pattern matches the variable's path.

    It is for tables that need other rules than the dense layers, or than each other:
    `CompositeOptimizer(Adam(), {"ads/user": RowWiseAdagrad(0.05), "ads/": Adagrad(0.1)})`.

    Each optimizer works as it does alone: with its own learning rate and schedule, clipping, weight
    decay and step count. `learning_rate` is the learning rate of `default`.

    The loss has one scale, the largest `loss_scale_factor` or scale of a `LossScaleOptimizer` among
    the optimizers (Keras 3); each gets its gradients as its own scale would have made them. While a
    `LossScaleOptimizer` is among them, optimizers whose gradients overflow leave out that step. To
    scale the loss for all of them, put the `CompositeOptimizer` into a `LossScaleOptimizer`.

    A pattern that matches no variable when the optimizer is built gives a warning. In Keras 2,
    layers of Keras lose their names in a loaded model, so that patterns find nothing; the variables
    of such a model keep the optimizers that they had when it was saved.

    Args:
        default: for variables that match no pattern; of this package or of Keras.
        optimizers: regular expression → optimizer. The expressions are searched in the variable's
            path (Keras 3: "layer/weight"; Keras 2: the variable's name). The first match counts.
        name: the name of the optimizer; by default that of the class.

    Raises:
        ValueError: an optimizer occurs twice.
    """

    _is_scaled_outside = False

    def __init__(
        self,
        default: Any,
        optimizers: Mapping[str, Any],
        name: str | None = None,
    ) -> None:
        name = name or type(self).__name__
        get = tf.keras.optimizers.get
        default, optimizers = get(default), {p: get(o) for p, o in optimizers.items()}
        every = [*optimizers.values(), default]
        if len({id(o) for o in every}) < len(every):
            raise ValueError("optimizers and default must be different objects, got one twice")
        if KERAS_3:
            super().__init__(learning_rate=0.0, name=name)
        else:
            super().__init__(name=name, jit_compile=False)
            self._learning_rate = self._build_learning_rate(0.0)
        self.default = default
        self._parts = optimizers
        self._built_all = False
        self._choices = _Choices()
        # Checkpoints follow attributes, but in Keras 3 no lists or dicts.
        for i, optimizer in enumerate(every):
            setattr(self, f"_optimizer_{i}", optimizer)

    @property
    def all_optimizers(self) -> list[Any]:
        """The optimizers of all patterns in order, then the default one."""
        return [*self._parts.values(), self.default]

    @property
    def optimizers(self) -> list[Any]:
        """Those that update variables, for callbacks of Keras; `optimizers[pattern]` is a part."""
        return _ByPattern(updating_optimizers(self), self._parts)

    @property
    def loss_scale_factor(self) -> Any:
        """The scale of the loss; None if a `LossScaleOptimizer` around this one scales it."""
        return None if self._is_scaled_outside else self._common_scale()

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        if value is not None:
            raise ValueError(
                "loss_scale_factor of a CompositeOptimizer must be None, since each of its "
                f"optimizers has its own, got {value!r}"
            )
        # Keras sets it in its constructor, and then in a LossScaleOptimizer that scales the loss.
        self._is_scaled_outside = hasattr(self, "_parts")

    def scale_loss(self, loss: Any) -> Any:
        """Keras 3: the loss times the scale that gradients are computed with.

        Args:
            loss: scalar.

        Returns:
            Scalar.
        """
        scale = self._common_scale()
        if _is_one(scale):
            return loss
        return loss * (scale if isinstance(loss, float) else tf.cast(scale, loss.dtype))

    def _common_scale(self) -> Any:
        """The factor of all gradients; a number unless it is that of a `LossScaleOptimizer`."""
        if self._is_scaled_outside or not KERAS_3:
            return 1.0
        return reduce(_maximum, (_scale_of(o) for o in self.all_optimizers))

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the default optimizer."""
        return self.default.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.default.learning_rate = value

    @property
    def variables(self) -> Any:
        """The step count, then the variables of every optimizer, in order."""
        variables = self._own_variables()
        for optimizer in self.all_optimizers:
            more = optimizer.variables
            variables += more() if callable(more) else more
        return variables if KERAS_3 else _CallableList(variables)

    def optimizer_of(self, variable: Any) -> Any:
        """The optimizer that updates a variable.

        Args:
            variable: of Keras or TensorFlow; its path or name is matched.

        Returns:
            One of `all_optimizers`.
        """
        number = self._choices.number_of(variable)
        return self.all_optimizers[self._match(variable) if number is None else number]

    def _match(self, variable: Any) -> int:
        """The number of the first pattern that matches; that of `default` is the last."""
        path = getattr(variable, "path", variable.name)
        matches = (i for i, pattern in enumerate(self._parts) if re.search(pattern, path))
        return next(matches, len(self._parts))

    def _choose(self, variables: Sequence[Any], others: Sequence[Any]) -> None:
        """Chooses an optimizer for each variable, for good."""
        numbers, default = [self._match(v) for v in variables], len(self._parts)
        if not KERAS_3 and all(n == default for n in numbers):  # Maybe their names are lost.
            numbers = self._choices.saved_numbers(variables) or numbers
        self._choices.set(variables, numbers)
        matched = {*numbers, *map(self._match, others)}
        for i, pattern in enumerate(self._parts):
            if i not in matched:
                paths = [str(getattr(v, "path", v.name)) for v in (*variables, *others)]
                warnings.warn(
                    f"the pattern {pattern!r} of CompositeOptimizer is the first one to match for "
                    f"no variable, expected one of {', '.join(paths[:20])}",
                    stacklevel=4,
                )

    def build(self, variables: Sequence[Any], others: Sequence[Any] = ()) -> None:
        """Builds every optimizer for its variables.

        Args:
            variables: all that will be updated.
            others: weights that other processes update, which patterns may match as well.
        """
        if self._built_all:
            return
        self._built_all = True
        super().build(variables)
        self._choose(variables, others)
        for optimizer in self.all_optimizers:
            matching = [v for v in variables if self.optimizer_of(v) is optimizer]
            if matching:
                optimizer.build(matching)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from the weight decay of every optimizer.

        Args:
            var_list: variables.
            var_names: texts that occur in the names of variables.

        Raises:
            ValueError: an optimizer is built.
        """
        for optimizer in self.all_optimizers:
            optimizer.exclude_from_weight_decay(var_list, var_names)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies each gradient with the optimizer of its variable.

        Args:
            grads_and_vars: pairs of gradient and variable.
            *args: passed on to each optimizer's `apply_gradients`.
            **kwargs: passed on to each optimizer's `apply_gradients`.

        Returns:
            The number of steps, after this one.

        Raises:
            ValueError: no variable has a gradient. An optimizer whose variables have none counts
                the step and does nothing else.
        """
        pairs = [(g, v) for g, v in grads_and_vars]
        variables = [v for _, v in pairs]
        if all(g is None for g, _ in pairs):
            names = ", ".join(str(getattr(v, "path", v.name)) for v in variables[:20])
            raise ValueError(f"no gradients provided for any variable: {names}")
        with tf.init_scope():
            self.build(variables)
        common = self._common_scale()
        for optimizer in self.all_optimizers:
            matching = [(g, v) for g, v in pairs if self.optimizer_of(v) is optimizer]
            if not matching:
                continue
            if all(g is None for g, _ in matching):
                _skip_step(optimizer)
            elif KERAS_3:
                _apply_scaled(optimizer, *zip(*matching, strict=True), common=common)
            else:
                optimizer.apply_gradients(matching, *args, **kwargs)
        return tf.convert_to_tensor(self.iterations.assign_add(1))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Applies each gradient with the optimizer of its variable, as Keras 3 calls it.

        Args:
            grads: one for each variable.
            trainable_variables: by default the variables that the optimizer was built for.
        """
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        self.apply_gradients(zip(grads, variables, strict=True))

    def save_own_variables(self, store: Any) -> None:
        """Writes the step count to a file, to which Keras also writes each optimizer.

        Args:
            store: the group of the file.
        """
        for i, variable in enumerate(self._own_variables()):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads the step count; files of earlier versions have all variables here, too.

        Args:
            store: the group of the file.
        """
        own = self._own_variables()
        if len(store.keys()) != len(own):
            super().load_own_variables(store)
            return
        for i, variable in enumerate(own):
            variable.assign(store[str(i)])

    def _own_variables(self) -> list[Any]:
        variables = super().variables
        return list(variables() if callable(variables) else variables)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets variables to their averages, where their optimizer has `use_ema`.

        Args:
            var_list: all that the optimizers were built for.
        """
        for optimizer in self.all_optimizers:
            matching = [v for v in var_list if self.optimizer_of(v) is optimizer]
            if matching:
                optimizer.finalize_variable_values(matching)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        serialize = tf.keras.optimizers.serialize
        return {
            "name": self.name,
            "default": serialize(self.default),
            "optimizers": {p: serialize(o) for p, o in self._parts.items()},
            **({} if KERAS_3 or not self._built_all else {"choices": self._choices.as_list()}),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> CompositeOptimizer:
        """The optimizer that `get_config` described.

        Args:
            config: of `get_config`, to which Keras may have added the learning rate.
            custom_objects: not used; the optimizers' classes must be registered with Keras.
        """
        del custom_objects
        known = {k: v for k, v in config.items() if k not in ("learning_rate", "choices")}
        made = cls(**known)
        made._choices.saved = config.get("choices", [])
        return made


class _Choices:
    """The optimizer, by its number, of each variable that a `CompositeOptimizer` was built for.

    Attributes:
        saved: shape and number of each variable in a file that Keras 2 has written.
    """

    def __init__(self) -> None:
        self.saved: Sequence[Any] = []
        self._of: dict[int, tuple[Any, int]] = {}  # keeps the variables, so that ids are unique

    def set(self, variables: Sequence[Any], numbers: Sequence[int]) -> None:
        """Stores the number of each variable."""
        pairs = zip(variables, numbers, strict=True)
        self._of = {id(tf_variable(v)): (v, n) for v, n in pairs}

    def number_of(self, variable: Any) -> int | None:
        """The number of a variable; None if it is unknown."""
        return self._of.get(id(tf_variable(variable)), (None, None))[1]

    def as_list(self) -> list[Any]:
        """The shapes and numbers of the variables, which files have as `saved`."""
        return [[list(v.shape), n] for v, n in self._of.values()]

    def saved_numbers(self, variables: Sequence[Any]) -> list[int] | None:
        """The saved numbers, if the variables have the shapes that were saved."""
        shapes = [list(shape) for shape, _ in self.saved]
        fits = shapes == [list(v.shape) for v in variables]
        return [int(n) for _, n in self.saved] if fits and shapes else None


class _ByPattern(list):  # type: ignore[type-arg]
    """Optimizers, by their number or by the pattern of the variables that they update."""

    def __init__(self, optimizers: Sequence[Any], by_pattern: Mapping[str, Any]) -> None:
        super().__init__(optimizers)
        self._of = by_pattern

    def __getitem__(self, key: Any) -> Any:
        """The optimizer of a number or a pattern."""
        return self._of[key] if isinstance(key, str) else super().__getitem__(key)


def _scale_of(optimizer: Any) -> Any:
    """The loss scale of an optimizer of Keras 3; a tensor if it changes."""
    return optimizer.scale_loss(1.0)


def _is_one(scale: Any) -> bool:
    return isinstance(scale, float) and scale == 1.0


def _maximum(a: Any, b: Any) -> Any:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else tf.maximum(a, b)


def _apply_scaled(
    optimizer: Any, grads: Sequence[Any], variables: Sequence[Any], *, common: Any
) -> None:
    """A step of an optimizer of Keras 3, which divides by its own scale, with scaled gradients.

    Args:
        optimizer: built for the variables.
        grads: one for each variable, or None; multiplied by `common`.
        variables: to update.
        common: the loss scale.
    """
    own = _scale_of(optimizer)
    ratio = own / common
    if not _is_one(ratio):
        grads = [map_values(g, lambda t: t * tf.cast(ratio, t.dtype)) for g in grads]
    if isinstance(common, float) or not isinstance(own, float):
        optimizer.apply(list(grads), list(variables))
    else:  # It does not check gradients that another one has scaled.
        apply_if_finite(optimizer, list(grads), list(variables))


def _skip_step(optimizer: Any) -> None:
    """Counts a step in which no variable of the optimizer has a gradient."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    for part in getattr(optimizer, "all_optimizers", ()):
        _skip_step(part)
    if hasattr(optimizer, "skip_step"):
        optimizer.skip_step()
    else:
        optimizer._iterations.assign_add(1)


class _CallableList(list):  # type: ignore[type-arg]
    """A list that returns itself when it is called, as `variables` of Keras 2 does."""

    def __call__(self) -> list[Any]:
        return self
