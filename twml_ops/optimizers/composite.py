"""Different optimizers for different variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import KERAS_3, serializable


@serializable
class CompositeOptimizer(tf.keras.optimizers.Optimizer):
    """Updates each variable with the first optimizer whose pattern matches the variable's path.

    It is for tables that need other rules than the dense layers, or than each other:
    `CompositeOptimizer(Adam(), {"ads/user": RowWiseAdagrad(0.05), "ads/": Adagrad(0.1)})`.

    Each optimizer works as it does alone: with its own learning rate and schedule, clipping, weight
    decay and step count. `learning_rate` is the learning rate of `default`.

    Args:
        default: for variables that match no pattern; of this package or of Keras.
        optimizers: regular expression → optimizer. The expressions are searched in the variable's
            path (Keras 3: "layer/weight"; Keras 2: the variable's name). The first match counts.
        name: of the optimizer; by default that of the class.

    Raises:
        ValueError: an optimizer occurs twice.
    """

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
        self.optimizers = optimizers
        self._built_all = False
        # Checkpoints follow attributes, but in Keras 3 not those that are lists or dicts.
        for i, optimizer in enumerate(every):
            setattr(self, f"_optimizer_{i}", optimizer)

    @property
    def all_optimizers(self) -> list[Any]:
        """The optimizers of all patterns in order, then the default one."""
        return [*self.optimizers.values(), self.default]

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
        variables = super().variables
        variables = list(variables() if callable(variables) else variables)
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
        path = getattr(variable, "path", variable.name)
        for pattern, optimizer in self.optimizers.items():
            if re.search(pattern, path):
                return optimizer
        return self.default

    def build(self, variables: Sequence[Any]) -> None:
        """Builds every optimizer for its variables.

        Args:
            variables: all that will be updated.
        """
        if self._built_all:
            return
        self._built_all = True
        super().build(variables)
        for optimizer in self.all_optimizers:
            matching = [v for v in variables if self.optimizer_of(v) is optimizer]
            if matching:
                optimizer.build(matching)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies each gradient with the optimizer of its variable.

        Args:
            grads_and_vars: pairs of gradient and variable.
            *args: passed on to each optimizer's `apply_gradients`.
            **kwargs: passed on to each optimizer's `apply_gradients`.

        Returns:
            The number of steps, after this one.
        """
        pairs = [(g, v) for g, v in grads_and_vars]
        variables = [v for _, v in pairs]
        with tf.init_scope():
            self.build(variables)
        for optimizer in self.all_optimizers:
            matching = [(g, v) for g, v in pairs if self.optimizer_of(v) is optimizer]
            if matching:
                optimizer.apply_gradients(matching, *args, **kwargs)
        return tf.convert_to_tensor(self.iterations.assign_add(1))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """As Keras 3 calls it: applies each gradient with the optimizer of its variable.

        Args:
            grads: one for each variable.
            trainable_variables: by default those that the optimizer was built for.
        """
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        self.apply_gradients(zip(grads, variables, strict=True))

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
            "optimizers": {p: serialize(o) for p, o in self.optimizers.items()},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> CompositeOptimizer:
        """The optimizer that `get_config` described.

        Args:
            config: of `get_config`, to which Keras may have added the learning rate.
            custom_objects: not used; the optimizers' classes must be registered with Keras.
        """
        del custom_objects
        return cls(**{k: v for k, v in config.items() if k != "learning_rate"})


class _CallableList(list):  # type: ignore[type-arg]
    """A list that returns itself when it is called, as `variables` of Keras 2 does."""

    def __call__(self) -> list[Any]:
        return self
