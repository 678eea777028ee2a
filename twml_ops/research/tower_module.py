"""The interactions of the fields of one tower, and the projection that shrinks what leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.layers._arguments import check_positive_integer
from twml_ops.layers._weights import copied
from twml_ops.layers.cross import Cross


@serializable
class TowerModule(tf.keras.layers.Layer):
    """A linear projection of crosses of the vectors of some fields: [B, F, D] → [B, C].

    Luo et al., "Disaggregated Multi-Tower: Topology-aware Modeling Technique for Efficient Large
    Scale Recommendation", MLSys 2024, of which this is the tower module of the Deep & Cross
    Network. The vectors of the F_t fields of the tower side by side are the input x0 of
    `num_crosses` layers `Cross`, and y = W x + b has C = max(1, round(ratio F_t D)) numbers. A host
    that has the tables of these fields sends C numbers of an example instead of F_t D.
    `planning.partition_fields` divides fields into towers.

    Args:
        ratio: C divided by the F_t D numbers of the tower's vectors, above 0 and at most 1.
        fields: Positions of the fields of the tower among the F fields, all different; None: all.
        num_crosses: Number of `Cross` layers, not negative. 0: the projection alone.
        rank: Rank of their matrices; None: full.
        kernel_initializer: Keras initializer of the matrices.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range; or, when the layer is built, the input is not
            [B, F, D] with known F and D, or has no field of this position.
    """

    def __init__(
        self,
        ratio: float = 0.25,
        fields: Sequence[int] | None = None,
        num_crosses: int = 1,
        rank: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, got {ratio!r}")
        self.fields = None if fields is None else [int(f) for f in fields]
        if self.fields is not None and (
            not self.fields or min(self.fields) < 0 or len({*self.fields}) < len(self.fields)
        ):
            raise ValueError(f"fields must be different positions, at least one, got {fields!r}")
        self.ratio = float(ratio)
        self.num_crosses = check_positive_integer("num_crosses + 1", num_crosses + 1) - 1
        self.rank = rank
        self.kernel_initializer = tf.keras.initializers.get(kernel_initializer)
        for i in range(self.num_crosses):
            cross = Cross(
                rank,
                kernel_initializer=copied(self.kernel_initializer),
                name=f"cross_{i}",
                dtype=kwargs.get("dtype"),
            )
            setattr(self, f"cross_{i}", cross)  # checkpoints follow attributes
        self.units: int | None = None  # D, known when built
        self.kernel: Any = None
        self.bias: Any = None

    # Not a property: Keras 2 would save the list, under other names than Keras 3 saves its layers.
    def cross_layers(self) -> list[Cross]:
        """The crosses of the tower.

        Returns:
            `num_crosses` layers, in the order in which they are applied.
        """
        return [getattr(self, f"cross_{i}") for i in range(self.num_crosses)]

    def build(self, input_shape: Any) -> None:
        """Creates the weights of the crosses and of the projection."""
        width, outputs = self._widths(input_shape)
        self.units = int(input_shape[-1])
        for cross in self.cross_layers():
            if not cross.built:  # Keras 3 builds layers of a config that were built before
                with tf.name_scope(cross.name):  # Keras 2 names weights by it
                    cross.build((None, width))
        self.kernel = self.add_weight(
            name="kernel",
            shape=(width, outputs),
            initializer=copied(self.kernel_initializer),
            trainable=True,
        )
        self.bias = self.add_weight(
            name="bias", shape=(outputs,), initializer="zeros", trainable=True
        )
        super().build(input_shape)

    def _widths(self, input_shape: Any) -> tuple[int, int]:
        """F_t D and C."""
        shape = tuple(input_shape)
        if len(shape) != 3 or None in shape[1:]:
            raise ValueError(f"inputs must be [B, F, D] with known F and D, got {shape}")
        _, count, units = shape
        if self.fields is not None and max(self.fields) >= count:
            raise ValueError(
                f"inputs must have the fields {list(self.fields)} of the tower, got {count} fields"
            )
        width = (count if self.fields is None else len(self.fields)) * units
        return width, max(1, round(self.ratio * width))

    def call(self, inputs: Any) -> tf.Tensor:
        """Computes the output of the tower for one batch.

        Args:
            inputs: Float [B, F, D].

        Returns:
            [B, C].
        """
        return self.output_of(inputs, self.ordered_weights())

    def ordered_weights(self) -> list[Any]:
        """The weights of the layer, which is built, in the order of the formula.

        Returns:
            The weights of each cross, the matrix of the projection, and its bias.
        """
        crosses = [w for cross in self.cross_layers() for w in cross.ordered_weights()]
        return [*crosses, self.kernel, self.bias]

    def output_of(self, inputs: Any, weights: Sequence[Any]) -> tf.Tensor:
        """Computes the output by weights that need not be in this process' variables.

        Args:
            inputs: Float [B, F, D].
            weights: Variables or tensors, as of `ordered_weights`.

        Returns:
            [B, C].
        """
        count, units = inputs.shape[1:]
        if self.fields is None:
            x0 = tf.reshape(inputs, [-1, count * units])
        else:  # its gradient is one stack, and that of a gather a sum by segments
            vectors = tf.unstack(inputs, num=count, axis=1)
            x0 = tf.concat([vectors[f] for f in self.fields], axis=1)
        x, crosses = x0, self.cross_layers()
        *of_crosses, kernel, bias = weights
        for i, cross in enumerate(crosses):
            each = len(of_crosses) // len(crosses)
            x = cross.crossed(x0, x, of_crosses[i * each : (i + 1) * each])
        return tf.linalg.matmul(x, tf.convert_to_tensor(kernel)) + tf.convert_to_tensor(bias)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, int]:
        """Returns [B, C]."""
        return (input_shape[0], self._widths(input_shape)[1])

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "ratio": self.ratio,
            "fields": None if self.fields is None else list(self.fields),
            "num_crosses": self.num_crosses,
            "rank": self.rank,
            "kernel_initializer": tf.keras.initializers.serialize(self.kernel_initializer),
        }
