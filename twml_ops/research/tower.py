"""One tower of fields: the vectors of its fields, and the module that shrinks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops._keras import serializable
from twml_ops.layers import FieldEmbedding
from twml_ops.ops._library import library
from twml_ops.research.tower_module import TowerModule


@serializable
class Tower(tf.keras.layers.Layer):
    """A `TowerModule` on the vectors of a `FieldEmbedding`: ids [B, F] → [B, C].

    Luo et al., "Disaggregated Multi-Tower: Topology-aware Modeling Technique for Efficient Large
    Scale Recommendation", MLSys 2024. The result is `module(embedding(ids))`. With tables on
    parameter servers, the table of the tower is on one server, which also has the weights of the
    module, computes its output and trains both. So C numbers of an example and their gradients
    cross the network, and not the F D numbers of the vectors.

    Args:
        embedding: The `FieldEmbedding` of the fields of the tower. Its vectors have one width, and
            it has no `pooling`, `projected_units`, `storage` and `embeddings_regularizer`.
        module: The `TowerModule`, whose `fields` are positions in the embedding.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: The embedding has one of these options.
    """

    def __init__(self, embedding: FieldEmbedding, module: TowerModule, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for option in ("pooling", "projected_units", "storage", "embeddings_regularizer"):
            if getattr(embedding, option) is not None:
                raise ValueError(
                    f"embedding must have no {option}, got {getattr(embedding, option)!r}"
                )
        if not isinstance(embedding.units, int):
            raise ValueError(
                f"embedding must have vectors of one width, got units={list(embedding.units)}"
            )
        self.embedding, self.module = embedding, module
        self.supports_jit = False  # the ops of the embedding are no XLA ops

    def build(self, input_shape: Any = None) -> None:
        """Creates the table and the weights of the module."""
        for layer, shape in ((self.embedding, input_shape), (self.module, self._vectors_shape())):
            if not layer.built:  # Keras 3 builds layers of a config that were built before
                with tf.name_scope(layer.name):  # Keras 2 names weights by it
                    layer.build(shape)
        super().build(input_shape)

    def _vectors_shape(self) -> tuple[None, int, int]:
        units = self.embedding.units
        assert isinstance(units, int)
        return None, len(self.embedding.num_rows), units

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Looks up one batch and computes the output of the module.

        Args:
            inputs: As of `FieldEmbedding.call`.
            training: As of `FieldEmbedding.call`.

        Returns:
            [B, C].
        """
        (table,) = self.embedding.table_variables
        place = placement.placement_of(table)
        if place.runs_modules:
            with library.on_host():
                entries = self.embedding.entries(inputs)
            module = placement.ProductModule(self._output_of, self.module.ordered_weights())
            output = place.module_output(entries, table, module)
            if output is not None:
                return tf.cast(output, self.module.compute_dtype)
        return self.module(self.embedding(inputs, training=training))

    def _output_of(self, product: tf.Tensor, weights: Sequence[tf.Tensor]) -> tf.Tensor:
        """The output of the module for a product with the table, as float32."""
        values = [tf.cast(value, self.module.compute_dtype) for value in weights]
        vectors = tf.cast(self.embedding.vectors_of(product), self.module.compute_dtype)
        return tf.cast(self.module.output_of(vectors, values), tf.float32)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, int]:
        """Returns [B, C]."""
        shape = self.embedding.compute_output_shape(input_shape)
        return self.module.compute_output_shape(shape)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        serialize = tf.keras.layers.serialize
        return {
            **super().get_config(),
            "embedding": serialize(self.embedding),
            "module": serialize(self.module),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Tower:
        """Makes a layer of a configuration.

        Args:
            config: What `get_config` has returned.

        Returns:
            The layer, which is not built.
        """
        made = {
            name: tf.keras.layers.deserialize(config[name])
            if isinstance(config[name], dict)
            else config[name]
            for name in ("embedding", "module")
        }
        return cls(**{**config, **made})
