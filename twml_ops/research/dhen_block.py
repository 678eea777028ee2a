"""A layer of the Deep and Hierarchical Ensemble Network (DHEN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from twml_ops._keras import KERAS_3, serializable
from twml_ops.research.field_interactions import (
    FieldAttention,
    FieldConvolution,
    FieldCross,
    FieldDot,
    FieldInteraction,
    FieldLinear,
    check_positive,
    fields_and_width,
    layer_norm,
)

DHEN_MODULES: dict[str, type[FieldInteraction]] = {
    "attention": FieldAttention,
    "convolution": FieldConvolution,
    "cross": FieldCross,
    "dot": FieldDot,
    "linear": FieldLinear,
}
"""The interaction of each name that `DHENBlock` takes."""

Ensemble = Literal["concat", "sum", "weighted"]


@serializable
class DHENBlock(tf.keras.layers.Layer):
    """y = LayerNorm(Ensemble(interactions of x) + Shortcut(x)): [B, F, D] → [B, outputs, D].

    Zhang et al. 2022, "DHEN: A Deep and Hierarchical Ensemble Network for Large-Scale Click-Through
    Rate Prediction", section 3.1. Several kinds of interactions see the same vectors, and each
    block of a stack sees the outputs of all interactions of the block before. The shortcut is x if
    the output has as many vectors, and otherwise L linear combinations of them.

    Args:
        modules: Names of interactions, of "attention", "convolution", "cross", "dot" and "linear";
            or layers [B, F, D] → [B, L, D] of your own. At least one.
        num_outputs: L, the number of vectors of each interaction that is given by name; None: F.
        ensemble: "concat": the output has the vectors of all interactions. "sum": their sum.
            "weighted": their sum with a learned weight for each interaction, at first equal.
        epsilon: Added to the variance in the normalization.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range; or, when the layer is built, the input is not
            [B, F, D] with known F and D, or interactions to be added differ in L.
    """

    def __init__(
        self,
        modules: Sequence[Any] = ("dot", "linear"),
        num_outputs: int | None = None,
        ensemble: Ensemble = "concat",
        epsilon: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(modules, str) or not modules:
            raise ValueError(f"modules must be a sequence of at least one, got {modules!r}")
        if num_outputs is not None:
            check_positive("num_outputs", num_outputs)
        if ensemble not in ("concat", "sum", "weighted"):
            raise ValueError(f"ensemble must be concat, sum or weighted, got {ensemble!r}")
        self.num_outputs = num_outputs
        self.ensemble = ensemble
        self.epsilon = float(epsilon)
        self.modules = [self._module(m, i) for i, m in enumerate(modules)]
        if KERAS_3:  # its layers hide lists from checkpoints of TensorFlow; modules do not
            self._in_checkpoints = tf.Module()
            self._in_checkpoints.layers = list(self.modules)

    def _module(self, module: Any, index: int) -> Any:
        if isinstance(module, tf.keras.layers.Layer):
            return module
        if isinstance(module, dict):  # of a config
            return tf.keras.layers.deserialize(module)
        if module not in DHEN_MODULES:
            expected = ", ".join(DHEN_MODULES)
            raise ValueError(
                f"modules[{index}] must be a layer or one of {expected}, got {module!r}"
            )
        return DHEN_MODULES[module](self.num_outputs, name=f"{module}_{index}")

    def build(self, input_shape: Any) -> None:
        """Creates the weights of the interactions, the shortcut and the normalization."""
        fields, width = fields_and_width(input_shape)
        for module in self.modules:
            if not module.built:  # Keras 3 builds layers of a config that were built before
                with tf.name_scope(module.name):  # Keras 2 names weights by it
                    module.build(input_shape)
        outputs = self._counts(input_shape)
        if self.ensemble != "concat" and len(set(outputs)) > 1:
            raise ValueError(
                f"modules must have equal numbers of outputs for ensemble={self.ensemble!r}, got "
                f"{outputs}"
            )
        count = sum(outputs) if self.ensemble == "concat" else outputs[0]

        def add(name: str, shape: tuple[int, ...], initializer: Any) -> Any:
            return self.add_weight(name=name, shape=shape, initializer=initializer, trainable=True)

        self.shortcut = None
        if count != fields:
            self.shortcut = add("shortcut", (fields, count), "glorot_uniform")
        self.module_weights = None
        if self.ensemble == "weighted":
            equal = tf.keras.initializers.Constant(1 / len(outputs))
            self.module_weights = add("module_weights", (len(outputs),), equal)
        self.scale = add("scale", (width,), "ones")
        self.offset = add("offset", (width,), "zeros")
        super().build(input_shape)

    def _counts(self, input_shape: Any) -> list[int]:
        return [int(m.compute_output_shape(tuple(input_shape))[1]) for m in self.modules]

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Computes the outputs of one batch.

        Args:
            inputs: Float [B, F, D].
            training: Not used by the interactions of this package.

        Returns:
            [B, outputs, D].
        """
        del training
        made = [module(inputs) for module in self.modules]
        if self.ensemble == "concat":
            joined = tf.concat(made, axis=1)
        elif self.module_weights is None:
            joined = tf.add_n(made)
        else:
            weights = tf.unstack(tf.convert_to_tensor(self.module_weights), num=len(made))
            joined = tf.add_n([w * m for w, m in zip(weights, made, strict=True)])
        kept = inputs
        if self.shortcut is not None:
            kept = tf.einsum("bfd,fl->bld", inputs, tf.convert_to_tensor(self.shortcut))
        scale, offset = (tf.convert_to_tensor(w) for w in (self.scale, self.offset))
        return layer_norm(joined + kept, scale, offset, self.epsilon)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, int, int]:
        """[B, outputs, D]."""
        counts = self._counts(input_shape)
        count = sum(counts) if self.ensemble == "concat" else counts[0]
        return (input_shape[0], count, input_shape[2])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "modules": [tf.keras.layers.serialize(module) for module in self.modules],
            "num_outputs": self.num_outputs,
            "ensemble": self.ensemble,
            "epsilon": self.epsilon,
        }
