"""Different optimizers for different variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import KERAS_3, serializable


@serializable
class CompositeOptimizer(tf.keras.optimizers.Optimizer):
    """Hands each variable to the first optimizer whose pattern its path matches.

    For tables that want other rules than the dense layers do, and than each other:
    `CompositeOptimizer(Adam(), {"ads/user": RowWiseAdagrad(0.05), "ads/": Adagrad(0.1)})`.

    Each optimizer works as it does alone: its own learning rate and schedule, clipping, weight
    decay and step count. `learning_rate` is that of `default`.

    Args:
        default: for variables that match no pattern; of this package or of Keras.
        optimizers: regular expression, searched in the variable's path (Keras 3: "layer/weight";
            Keras 2: the variable's name), -> optimizer. The first match counts.
        name: of the optimizer.

    Raises:
        ValueError: an optimizer occurs twice.
    """

    def __init__(
        self,
        default: Any,
        optimizers: Mapping[str, Any],
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        name = name or type(self).__name__
        get = tf.keras.optimizers.get
        default, optimizers = get(default), {p: get(o) for p, o in optimizers.items()}
        every = [*optimizers.values(), default]
        if len({id(o) for o in every}) < len(every):
            raise ValueError("every optimizer must be one of its own, got one twice")
        kwargs.pop("learning_rate", None)  # Keras writes one into configs
        if KERAS_3:
            super().__init__(learning_rate=0.0, name=name)
        else:
            super().__init__(name=name, jit_compile=False)
            self._learning_rate = self._build_learning_rate(0.0)
        self.default = default
        self.optimizers = optimizers
        self._every = every
        self._shared_out = False
        # Checkpoints follow attributes; in Keras 3 not those that are lists or dicts.
        for i, optimizer in enumerate(every):
            setattr(self, f"_optimizer_{i}", optimizer)

    @property
    def learning_rate(self) -> Any:
        """That of the default optimizer."""
        return self.default.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.default.learning_rate = value

    @property
    def variables(self) -> Any:
        """The step count, then what every optimizer keeps, in order."""
        own = super().variables
        own = list(own() if callable(own) else own)
        for optimizer in self._every:
            theirs = optimizer.variables
            own += theirs() if callable(theirs) else theirs
        return own if KERAS_3 else _Callable(own)

    def optimizer_of(self, variable: Any) -> Any:
        """The optimizer that trains `variable`."""
        path = getattr(variable, "path", variable.name)
        for pattern, optimizer in self.optimizers.items():
            if re.search(pattern, path):
                return optimizer
        return self.default

    def build(self, variables: Sequence[Any]) -> None:
        """Builds every optimizer for its own variables."""
        if self._shared_out:
            return
        self._shared_out = True
        super().build(variables)
        for optimizer in self._every:
            mine = [v for v in variables if self.optimizer_of(v) is optimizer]
            if mine:
                optimizer.build(mine)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies each gradient by its variable's optimizer."""
        pairs = [(g, v) for g, v in grads_and_vars]
        variables = [v for _, v in pairs]
        with tf.init_scope():
            self.build(variables)
        for optimizer in self._every:
            mine = [(g, v) for g, v in pairs if self.optimizer_of(v) is optimizer]
            if mine:
                optimizer.apply_gradients(mine, *args, **kwargs)
        return tf.convert_to_tensor(self.iterations.assign_add(1))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """As Keras 3 calls it: applies each gradient by its variable's optimizer."""
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        self.apply_gradients(zip(grads, variables, strict=True))

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
        """The optimizer that `get_config` described."""
        del custom_objects
        return cls(**config)


class _Callable(list):  # type: ignore[type-arg]
    """A list that, as Keras 2 allows, may be called for itself."""

    def __call__(self) -> list[Any]:
        return self
