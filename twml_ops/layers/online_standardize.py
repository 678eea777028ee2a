"""Online normalization by the mean and the standard deviation of each feature."""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import no_autocast, serializable
from twml_ops.layers._batch import SparseBatch, parse


@serializable
class OnlineStandardize(tf.keras.layers.Layer):
    """`y = clip((v - mean) / max(sd, epsilon), -clip, clip) + b`: a running z-score per feature.

    In training the batch first goes into the feature's count, mean and sum of squares (float64,
    Welford and Chan), and is standardized with them; no pass over the data is needed. Inference
    leaves them alone, and so does a layer with `trainable = False`. They count as constants for the
    gradient; that of b is sparse. A NaN is a missing value: not counted, and y = b.

    Takes any batch form and returns it; a binary batch (ids alone, all 1) becomes a pair.

    Args:
        input_dim: N, size of the id space; ids outside [0, N) are an error.
        epsilon: least standard deviation; positive and not denormal.
        clip: largest |y| before the bias.
        decay: for drifting data, in (0, 1]: what was seen before weighs so much less after each
            training batch that has the feature. 1: all values weigh the same.
        use_bias: whether each feature has a trainable bias b, which tells its presence from its
            absence.
        bias_initializer: of the bias [N].
        nonfinite: what becomes of infinite values, which are never counted. "error": the batch is
            refused. "zero": y = b.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range, or an input of no batch form.
        tf.errors.InvalidArgumentError: when called, an id out of range, or an infinite value
            where that is an error.
    """

    def __init__(
        self,
        input_dim: int,
        epsilon: float = 1e-6,
        clip: float = 10.0,
        decay: float = 1.0,
        use_bias: bool = True,
        bias_initializer: Any = "zeros",
        nonfinite: Literal["error", "zero"] = "error",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        super().__init__(**kwargs)
        if int(input_dim) != input_dim or input_dim < 1:
            raise ValueError(f"input_dim must be a positive integer, got {input_dim!r}")
        if not tf.float32.as_numpy_dtype(1.2e-38) <= epsilon < float("inf"):
            raise ValueError(f"epsilon must be a positive normal number, got {epsilon!r}")
        if not clip > 0:
            raise ValueError(f"clip must be positive, got {clip!r}")
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {decay!r}")
        if nonfinite not in ("error", "zero"):
            raise ValueError(f"nonfinite must be one of ('error', 'zero'), got {nonfinite!r}")
        self.input_dim = int(input_dim)
        self.epsilon = float(epsilon)
        self.clip = float(clip)
        self.decay = float(decay)
        self.use_bias = use_bias
        self.bias_initializer = tf.keras.initializers.get(bias_initializer)
        self.nonfinite = nonfinite
        self.supports_jit = False  # the op is no XLA op
        self.moments: Any = None
        self.bias: Any = None

    def build(self, input_shape: Any = None) -> None:
        """Creates the moments, all 0, and b."""
        del input_shape  # ids name the features: the input's width says nothing
        self.moments = self.add_weight(
            name="moments",
            shape=(self.input_dim, 3),
            initializer="zeros",
            trainable=False,
            dtype=tf.float64.name,
            **no_autocast(),
        )
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.input_dim,),
                initializer=self.bias_initializer,
                trainable=True,
                dtype=tf.float32.name,
                **no_autocast(),
            )
        super().build(None)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Inputs: a batch of any form. Returns it with its values standardized."""
        batch, rebuild = parse(inputs)
        training = False if training is None or not self.trainable else training
        values = ops.online_standardize(
            batch.ids,
            batch.values_or_ones(),
            self.moments,
            self.bias,
            tf.cast(training, tf.bool),
            epsilon=self.epsilon,
            clip=self.clip,
            decay=self.decay,
            nonfinite=self.nonfinite,
        )
        return rebuild(SparseBatch(batch.ids, values, batch.row_splits), self.input_dim)

    def merge(self, *others: OnlineStandardize) -> None:
        """Takes over what other layers of the same size have seen, of other data.

        Processes that saw parts of the data merge so; the biases stay this layer's.

        Raises:
            ValueError: a layer of another `input_dim`, or one that is not built.
        """
        for other in (self, *others):
            if other.moments is None or other.input_dim != self.input_dim:
                raise ValueError(
                    f"others must be built and have input_dim {self.input_dim}, got "
                    f"{other.input_dim}, {'not ' if other.moments is None else ''}built"
                )
        for other in others:
            a, b = (tf.convert_to_tensor(m) for m in (self.moments, other.moments))
            (count_a, mean_a, m2_a), (count_b, mean_b, m2_b) = (
                tf.unstack(m, axis=1) for m in (a, b)
            )
            count, delta = count_a + count_b, mean_b - mean_a
            share = tf.math.divide_no_nan(count_b, count)
            mean = mean_a + delta * share
            m2 = m2_a + m2_b + delta * delta * count_a * share
            self.moments.assign(tf.stack([count, mean, m2], axis=1))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "input_dim": self.input_dim,
            "epsilon": self.epsilon,
            "clip": self.clip,
            "decay": self.decay,
            "use_bias": self.use_bias,
            "bias_initializer": tf.keras.initializers.serialize(self.bias_initializer),
            "nonfinite": self.nonfinite,
        }
