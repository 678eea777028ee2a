"""Target and count statistics of the categorical fields of a model and of crosses of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import CategoryCounts, CountStatistics, TargetStatistics
from twml_ops.models._crosses import ROW_KEYS, Array, CrossExamples, cross_positions
from twml_ops.models._labels import columns_of


class StatisticsLayers(NamedTuple):
    """The layers, adapted to the data.

    Attributes:
        means: one for each label.
        counts: the counts of the categories of all fields.
    """

    means: list[TargetStatistics]
    counts: CountStatistics


class StatisticsColumns:
    """The statistics as inputs of a net.

    Args:
        layers: adapted to the data.
        base: the logit of the share of positives of each label.
        keyed: symbolic ids [B, F] and row keys [B].

    Attributes:
        outputs: symbolic, [B, any] each: the logits of the means of each label minus that of all
            rows; the logarithms of the counts, divided by that of the number of all rows.
        num_folds: number of folds of the rows.
    """

    def __init__(self, layers: StatisticsLayers, base: Sequence[float], keyed: list[Any]) -> None:
        scaling = tf.keras.layers.Rescaling
        rows = float(np.sum(layers.counts.state_variables[-1].numpy()[:, 0]))
        self._layers: list[tuple[Any, Any]] = [
            (means, scaling(1.0, -logit, name=f"{means.name}_centered"))
            for means, logit in zip(layers.means, base, strict=True)
        ]
        of_counts = scaling(1 / np.log1p(rows), name=f"{layers.counts.name}_scaled")
        self._layers.append((layers.counts, of_counts))
        self.outputs = [scale(layer(keyed)) for layer, scale in self._layers]
        self.num_folds = layers.counts.num_folds

    @property
    def width(self) -> int:
        """Number of columns of all outputs together."""
        return sum(layer.output_dim for layer, _ in self._layers)

    def find(self, ids: Any) -> Array:
        """Where categories and crosses are in the layers, int32 [B, any], of ids [B, F]."""
        # All layers have counted the same rows, so that their categories are the same.
        return np.asarray(self._layers[-1][0].find(ids)).astype(np.int32)

    def without(self, found: Array, row_keys: Array, fold: int) -> Array:
        """The outputs side by side, float32 [B, width], of rows outside a fold and the row's own.

        Args:
            found: as `find` returns.
            row_keys: int64 [B].
            fold: which is left out.
        """
        rows = found.astype(np.int64)
        parts = [
            scale(layer.of_found(rows, row_keys, fold)).numpy() for layer, scale in self._layers
        ]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def state(self) -> list[Array]:
        """Arrays that determine, with its arguments, what `without` returns."""
        configs = [[layer.get_config() for layer in pair] for pair in self._layers]
        found = [np.frombuffer(repr(configs).encode(), np.uint8)]
        for layer, _ in self._layers:
            found += [variable.numpy() for variable in layer.state_variables]
        return found


class FieldStatistics:
    """Counts the categories of a data set batch by batch, and makes layers of the counts.

    Args:
        schema: the features and labels, with at least one categorical field.
        crosses: names of the fields of each cross, see `cross_positions`; None: they are chosen.

    Raises:
        ValueError: a cross names other features.
    """

    def __init__(self, schema: Schema, crosses: Sequence[str] | None) -> None:
        self._schema = schema
        self._crosses = cross_positions(crosses or (), schema)
        self._sample = CrossExamples(schema) if crosses is None else None
        self._counts = self._new_counts()

    def _new_counts(self) -> list[CategoryCounts]:
        return [layer.new_counts() for layer in self._layers().means]

    def _layers(self) -> StatisticsLayers:
        fields, labels = len(self._schema.fields), range(len(self._schema.labels))
        means = [TargetStatistics(fields, self._crosses, name=f"target_means_{i}") for i in labels]
        return StatisticsLayers(
            means, CountStatistics(fields, self._crosses, name="category_counts")
        )

    def update(self, features: Mapping[str, Any], labels: Array, weights: Array) -> None:
        """Counts a batch.

        Args:
            features: in the layout "keyed_fields".
            labels: float64 [B, L].
            weights: float64 [B].

        Raises:
            ValueError: the features have no `row_keys`.
        """
        if ROW_KEYS not in features:
            raise ValueError(
                f"dataset must have the feature {ROW_KEYS}, as that of data.Source has, for "
                f"out-of-fold statistics, got {sorted(features)}: add it, or pass "
                "statistics=False"
            )
        ids, keys = features["categorical"].numpy(), features[ROW_KEYS].numpy()
        self._count(ids, keys, labels, weights)
        if self._sample is not None:
            self._sample.update(features, labels, weights)

    @property
    def counts(self) -> list[CategoryCounts]:
        """The counts so far, one for each label."""
        return self._counts

    def use(self, counts: list[CategoryCounts]) -> None:
        """Uses the counts of another object with the same options, instead of `update`."""
        self._counts = counts

    def determining(self) -> Any:
        """What determines the counts of data; None if a sample of the data is kept as well."""
        return None if self._sample is not None else self._crosses

    def layers(self, dataset: tf.data.Dataset) -> StatisticsLayers:
        """The layers.

        Args:
            dataset: the batches that were counted. It is read once more if crosses were chosen by a
                sample of its rows.
        """
        if self._sample is not None:
            self._crosses = self._sample.crosses()
            if self._crosses:
                self._counts = self._new_counts()
                self._count_again(self._sample.all_rows(), dataset)
        layers = self._layers()
        for layer, found in zip(layers.means, self._counts, strict=True):
            layer.adapt_from_counts(found)
        layers.counts.adapt_from_counts(self._counts[0])  # it does not depend on the label
        return layers

    def _count_again(self, rows: tuple[Array, ...] | None, dataset: tf.data.Dataset) -> None:
        if rows is not None:
            keys, ids, labels, weights = rows
            self._count(ids, keys, labels, weights)
            return
        for features, labels, *weights in dataset:
            ids, keys = features["categorical"].numpy(), features[ROW_KEYS].numpy()
            self._count(ids, keys, *columns_of(labels, weights, self._schema.labels))

    def _count(self, ids: Array, row_keys: Array, labels: Array, weights: Array) -> None:
        for label, found in enumerate(self._counts):
            found.update(ids, row_keys, labels[:, label], weights)
