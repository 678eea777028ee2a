"""The base of the layers that normalize features by running statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, ClassVar

import tensorflow as tf

from twml_ops import placement
from twml_ops._batch import SparseBatch, parse
from twml_ops.layers._weights import add_table
from twml_ops.ops._library import library


class FeatureNorm(tf.keras.layers.Layer):
    """Base of layers with a running state and a bias for each feature.

    Subclasses name the op and its state and provide the op's arguments.
    """

    state_name: ClassVar[str]
    state_width: ClassVar[tuple[int, ...]] = ()  # shape of the state of a feature
    state_dtype: ClassVar[tf.DType] = tf.float32

    def __init__(
        self,
        input_dim: int,
        epsilon: float,
        decay: float,
        use_bias: bool,
        bias_initializer: Any,
        nonfinite: str,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        super().__init__(**kwargs)
        if int(input_dim) != input_dim or input_dim < 1:
            raise ValueError(f"input_dim must be a positive integer, got {input_dim!r}")
        if not tf.float32.as_numpy_dtype(1.2e-38) <= epsilon < float("inf"):
            raise ValueError(f"epsilon must be a positive normal number, got {epsilon!r}")
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {decay!r}")
        if nonfinite not in ("error", "zero"):
            raise ValueError(f"nonfinite must be one of ('error', 'zero'), got {nonfinite!r}")
        self.input_dim = int(input_dim)
        self.epsilon = float(epsilon)
        self.decay = float(decay)
        self.use_bias = use_bias
        self.bias_initializer = tf.keras.initializers.get(bias_initializer)
        self.nonfinite = nonfinite
        self.supports_jit = False  # the op cannot be compiled by XLA
        self.bias: Any = None
        setattr(self, self.state_name, None)

    def _op(self) -> Callable[..., tf.Tensor]:
        raise NotImplementedError

    def _op_arguments(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "nonfinite": self.nonfinite, "decay": self.decay}

    @property
    def state(self) -> Any:
        """The running state of all features, a variable; None before the layer is built."""
        return getattr(self, self.state_name)

    def joined_state(self, before: tf.Tensor, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """The state after a batch whose parts other processes have seen.

        Args:
            before: The state before the batch.
            after: For each part, the state after this part alone.

        Returns:
            The state after the whole batch. A part that has left the state of a feature as it was
            counts as one without the feature.
        """
        parts = [self.state_of_batch(before, each) for each in after]
        return self.state_with(before, reduce(self.join_batches, parts))

    def state_of_batch(self, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        """What a batch alone has added to the state, for `state_with`.

        Args:
            before: The state before the batch.
            after: The state after it.
        """
        raise NotImplementedError

    def join_batches(self, one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """What two batches together add to the state.

        Args:
            one: What `state_of_batch` has returned for the first.
            other: The same for the second.
        """
        raise NotImplementedError

    def state_with(self, state: tf.Tensor, of_batch: tf.Tensor) -> tf.Tensor:
        """The state after a batch.

        Args:
            state: The state before it, which need not be the one that `state_of_batch` was given.
            of_batch: What `state_of_batch` has returned.
        """
        raise NotImplementedError

    def build(self, input_shape: Any = None) -> None:
        """Creates the state, all zeros, and the bias."""
        del input_shape  # the number of features is `input_dim`
        shape = (self.input_dim, *self.state_width)
        state = self._add_state(self.state_name, shape, "zeros", self.state_dtype.name, False)
        setattr(self, self.state_name, state)
        if self.use_bias:
            self.bias = self._add_state("bias", (self.input_dim,), self.bias_initializer)
        super().build(None)

    def _add_state(
        self,
        name: str,
        shape: tuple[int, ...],
        initializer: Any,
        dtype: str = "float32",
        trainable: bool = True,
    ) -> Any:
        add = partial(add_table, self, name, dtype=dtype, trainable=trainable)
        return self._place().create(add, shape, initializer, f"{self.name}/{name}", dtype)

    def _place(self) -> placement.Placement:
        """Where the state and the bias are."""
        return placement.REPLICATED

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Normalizes the values of a batch.

        Args:
            inputs: A batch of (feature, value) entries in any batch form, B rows.
            training: Whether the batch also updates the state; bool or bool scalar. A layer with
                `trainable = False` never updates it.

        Returns:
            The batch with normalized values in the same form; a binary batch (ids alone) becomes a
            pair.
        """
        training = False if training is None or not self.trainable else training
        with library.on_host():
            batch, rebuild = parse(inputs)
            values = batch.values_or_ones()
            seen = None
            if training is not False:
                seen = placement.placement_of(self.state).gather_entries(batch.ids, values)
            if seen is not None:
                self._normalize(
                    *seen, None, training
                )  # updates the state only, equally on all replicas
                training = False
            values = self._normalize(batch.ids, values, self.bias, training)
            return rebuild(SparseBatch(batch.ids, values, batch.row_splits), self.input_dim)

    def _normalize(self, ids: tf.Tensor, values: tf.Tensor, bias: Any, training: Any) -> tf.Tensor:
        training = tf.cast(training, tf.bool)
        return self._op()(ids, values, self.state, bias, training, **self._op_arguments())

    def _check_mergeable(self, others: Sequence[FeatureNorm]) -> None:
        for other in (self, *others):
            built = other.state is not None
            if not built or other.input_dim != self.input_dim:
                raise ValueError(
                    f"others must be built and have input_dim {self.input_dim}, got "
                    f"{other.input_dim}, {'' if built else 'not '}built"
                )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "input_dim": self.input_dim,
            "epsilon": self.epsilon,
            "decay": self.decay,
            "use_bias": self.use_bias,
            "bias_initializer": tf.keras.initializers.serialize(self.bias_initializer),
            "nonfinite": self.nonfinite,
        }
