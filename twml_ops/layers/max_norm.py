"""Online normalization by the largest magnitude of each feature."""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import no_autocast, serializable
from twml_ops.layers._batch import SparseBatch, parse


@serializable
class MaxNorm(tf.keras.layers.Layer):
    """`y = clip(v / max(m, epsilon), -1, 1) + b`, m the largest |v| its feature has shown.

    In training m is raised to the batch's largest |v| of each feature before the batch is
    normalized with it: the values seen in training always lie in [-1, 1], whatever their order, and
    no pass over the data is needed. Inference leaves m alone, and so does a layer with
    `trainable = False`. m counts as a constant for the gradient; that of b is sparse.

    Takes any batch form and returns it; a binary batch (ids alone, all 1) becomes a pair.

    Args:
        input_dim: N, size of the id space; ids outside [0, N) are an error.
        epsilon: least divisor; positive and not denormal.
        use_bias: whether each feature has a trainable bias b, which tells its presence from its
            absence.
        bias_initializer: of the bias [N].
        nonfinite: what becomes of NaN and infinite values, which never enter m. "error": the batch
            is refused. "zero": they count as 0 (y = b).
        decay: for drifting data, in (0, 1]: before m is raised it is multiplied by this, once a
            training batch that has the feature. 0.999 forgets a peak to a half in 700 such batches.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range, or an input of no batch form.
        tf.errors.InvalidArgumentError: when called, an id out of range, or a non-finite value
            where that is an error.
    """

    def __init__(
        self,
        input_dim: int,
        epsilon: float = 1e-6,
        use_bias: bool = True,
        bias_initializer: Any = "zeros",
        nonfinite: Literal["error", "zero"] = "error",
        decay: float = 1.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        super().__init__(**kwargs)
        if int(input_dim) != input_dim or input_dim < 1:
            raise ValueError(f"input_dim must be a positive integer, got {input_dim!r}")
        if not tf.float32.as_numpy_dtype(1.2e-38) <= epsilon < float("inf"):
            raise ValueError(f"epsilon must be a positive normal number, got {epsilon!r}")
        if nonfinite not in ("error", "zero"):
            raise ValueError(f"nonfinite must be one of ('error', 'zero'), got {nonfinite!r}")
        self.input_dim = int(input_dim)
        self.epsilon = float(epsilon)
        self.use_bias = use_bias
        self.bias_initializer = tf.keras.initializers.get(bias_initializer)
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {decay!r}")
        self.nonfinite = nonfinite
        self.decay = float(decay)
        self.supports_jit = False  # the op is no XLA op
        self.max_abs: Any = None
        self.bias: Any = None

    def build(self, input_shape: Any = None) -> None:
        """Creates m, all 0, and b."""
        del input_shape  # ids name the features: the input's width says nothing
        self.max_abs = self._add_table("max_abs", "zeros", trainable=False)
        if self.use_bias:
            self.bias = self._add_table("bias", self.bias_initializer, trainable=True)
        super().build(None)

    def _add_table(self, name: str, initializer: Any, trainable: bool) -> Any:
        return self.add_weight(
            name=name,
            shape=(self.input_dim,),
            initializer=initializer,
            trainable=trainable,
            dtype=tf.float32.name,
            **no_autocast(),
        )

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Inputs: a batch of any form. Returns it with its values normalized."""
        batch, rebuild = parse(inputs)
        training = False if training is None or not self.trainable else training
        values = ops.max_norm(
            batch.ids,
            batch.values_or_ones(),
            self.max_abs,
            self.bias,
            tf.cast(training, tf.bool),
            epsilon=self.epsilon,
            nonfinite=self.nonfinite,
            decay=self.decay,
        )
        return rebuild(SparseBatch(batch.ids, values, batch.row_splits), self.input_dim)

    def merge(self, *others: MaxNorm) -> None:
        """Takes over what other layers of the same size have seen: m becomes the largest of all.

        Replicas or processes that saw parts of the data merge so; the biases stay this layer's.

        Raises:
            ValueError: a layer of another `input_dim`, or one that is not built.
        """
        for other in (self, *others):
            if other.max_abs is None or other.input_dim != self.input_dim:
                raise ValueError(
                    f"others must be built and have input_dim {self.input_dim}, got "
                    f"{other.input_dim}, {'not ' if other.max_abs is None else ''}built"
                )
        for other in others:
            self.max_abs.assign(tf.maximum(tf.convert_to_tensor(self.max_abs), other.max_abs))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "input_dim": self.input_dim,
            "epsilon": self.epsilon,
            "use_bias": self.use_bias,
            "bias_initializer": tf.keras.initializers.serialize(self.bias_initializer),
            "nonfinite": self.nonfinite,
            "decay": self.decay,
        }
