"""Parts that the models on fields share: their inputs, a vector for each field, and their outputs.

continuous ──┬─ quantiles ──┬─ buckets ──┐
             │              └─ ranks     ├─ field embedding ── vectors [B, F, D]
             └─ logarithms               │
categorical ─┬───────────────────────────┤
             └─ target and count         │
                statistics               │
bags ────────────────────────────────────┤
sparse ──── max norm ──── sparse linear ─┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from twml_ops._research import research
from twml_ops.data import Schema
from twml_ops.layers import (
    CategoryRows,
    FactorizationMachine,
    FieldEmbedding,
    FieldLogarithms,
    FieldQuantiles,
    MaxNorm,
    SparseLinear,
)
from twml_ops.models._adapt_fields import FieldState, adapt_fields
from twml_ops.models._crosses import ROW_KEYS
from twml_ops.models._field_statistics import FieldStatistics, StatisticsColumns
from twml_ops.models._labels import probabilities
from twml_ops.models._towers import tower_modules
from twml_ops.models._tree_logits import TreeStatistics, tree_logits, tree_options
from twml_ops.models.bias import Bias
from twml_ops.models.mean_logit import MeanLogit

MAX_MULTI_HOT = 256
_SPARSE_UNITS = 32
AUTO = "auto"


class Fields:
    """The inputs of a model on fields, and its parts.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", or "keyed_fields" for statistics, read once: for
            the quantiles of the continuous fields, the frequent categories, the statistics, and the
            shares of positives.
        options: the ones of `HashedNetOptions` that the model has.
        statistics: whether there are out-of-fold target and count statistics of the categorical
            fields.
        in_numbers: whether `numbers` has them; if not, only the trees do.
        crosses: crosses of these fields that have statistics as well, see
            `_crosses.cross_positions`; None: they are chosen.

    Attributes:
        inputs: symbolic inputs by name.
        num_rows: rows of each field: categorical fields, continuous fields, bags.
        category_rows: rows [B, any] of the categorical fields without bags; None: there are none.
        numbers: dense inputs [B, any], or None: ranks and logarithms of the continuous fields, and
            statistics of the categorical fields.
        labels: names of the labels.
        base: the logit of the share of positives of each label.

    Raises:
        ValueError: the schema has no features, or the learned hash is of other ones.
    """

    def __init__(
        self,
        schema: Schema,
        dataset: tf.data.Dataset,
        options: Mapping[str, Any],
        *,
        statistics: bool = False,
        in_numbers: bool = True,
        crosses: Sequence[str] | None = (),
    ) -> None:
        if not schema.groups:
            raise ValueError("schema must have at least one feature, got none")
        self._schema, self._options = schema, options
        num_bins, learned_hash = options["num_bins"], options.get("learned_hash")
        kept = options["min_count"], options["max_rows"]
        self.labels = schema.labels
        columns, single, bags = map(len, (schema.continuous, schema.fields, schema.bags))
        state = FieldState(
            FieldQuantiles(columns, num_bins, name="quantiles") if columns else None,
            FieldLogarithms(columns, name="logarithms") if columns else None,
            CategoryRows(single + bags, *kept, num_bags=bags, name="categories")
            if schema.categorical and learned_hash is None
            else None,
            FieldStatistics(schema, crosses) if statistics and single else None,
        )
        self.base, self._num_examples = adapt_fields(schema, dataset, state)
        categories, quantiles = state.categories, state.quantiles
        if learned_hash is not None:
            names = [*schema.fields, *schema.bags]
            categories = research().load_hash(learned_hash, names, bags, name="categories")
        self.inputs: dict[str, Any] = {}
        numbers: list[Any] = []
        self._statistics: StatisticsColumns | None = None
        self._keyed = in_numbers
        self.num_rows: list[int] = []
        self.category_rows: Any = None
        self._ids: list[Any] = []  # what a field embedding is called with
        matrices, of_bags = [], []
        if categories is not None:
            ids = [self._input("categorical", single, "int64")] if single else []
            parts = [
                self._ragged(schema.bag_arrays(n), n in schema.bag_weights) for n in schema.bags
            ]
            if state.statistics is not None:
                keyed = [ids[0], self._row_keys()]
                layers = state.statistics.layers(dataset)
                self._statistics = StatisticsColumns(layers, self.base, keyed)
                numbers += self._statistics.outputs if in_numbers else []
            rows = categories([*ids, *(part[0] for part in parts)])
            matrices += rows[: len(ids)]
            self.category_rows = rows[0] if ids else None
            of_bags = [
                [found, *part[1:]] if part[1:] else found
                for found, part in zip(rows[len(ids) :], parts, strict=True)
            ]
            self.num_rows += categories.num_rows[:single]
        if quantiles is not None:
            assert state.logarithms is not None
            values = self._input("continuous", columns, "float32")
            present = self._input("continuous_present", columns, "bool")
            buckets, ranks = quantiles([values, present])
            numbers = [ranks, state.logarithms([values, present]), *numbers]
            matrices.append(buckets)
            self.num_rows += [1 + num_bins] * columns
        self.numbers: Any = concatenated(numbers, "numbers") if numbers else None
        if matrices:
            self._ids.append(concatenated(matrices, "ids"))
        if categories is not None:
            self._ids += of_bags
            self.num_rows += categories.num_rows[len(schema.fields) :]
        self._raw: Any = None
        self._sparse: Any = None
        if schema.sparse_dim:
            self._raw = self._ragged("sparse", weighted=True)
            self._sparse = MaxNorm(schema.sparse_dim, name="sparse_norm")(self._raw)

    def _input(self, name: str, width: int, dtype: str) -> Any:
        self.inputs[name] = tf.keras.Input((width,), dtype=dtype, name=name)
        return self.inputs[name]

    def _row_keys(self) -> Any:
        self.inputs[ROW_KEYS] = tf.keras.Input((), dtype="int64", name=ROW_KEYS)
        return self.inputs[ROW_KEYS]

    def _ragged(self, name: str, weighted: bool) -> list[Any]:
        dtypes = {"ids": "int64", "values": "float32"} if weighted else {"ids": "int64"}
        parts = []
        for part, dtype in dtypes.items():
            key = f"{name}_{part}"
            self.inputs[key] = tf.keras.Input((None,), ragged=True, dtype=dtype, name=key)
            parts.append(self.inputs[key])
        return parts

    def vectors(self) -> Any:
        """A vector for each field: [B, F, units]. Raw sparse ids are one field.

        If there are `field_units`, the vectors of each field are multiplied by a matrix of the
        field, so that all have the width `units` (Ginart et al., "Mixed Dimension Embeddings", ISIT
        2021).
        """
        parts = []
        units, field_units = self._options["units"], self._options["field_units"]
        if self._ids:
            widths = self._widths(field_units, units) if field_units else units
            projected = units if field_units else None
            parts.append(self._vectors(widths, projected))
        if self._sparse is not None:
            x = self._sparse_linear(units, self._initializer, "embedding_sparse")
            parts.append(tf.keras.layers.Reshape((1, units), name="embedding_sparse_field")(x))
        return concatenated(parts, "embedding_fields")

    def flat_input(
        self,
        sparse_units: int | None,
        towers: Sequence[str] | None = None,
        tower_outputs: float | None = None,
    ) -> Any:
        """All vectors and `numbers` side by side, [B, any].

        Args:
            sparse_units: width of the vector of all raw sparse ids of a row; None: 32, or, if there
                are at most `MAX_MULTI_HOT` ids, a vector of their values.
            towers: the outputs of these towers take the place of the vectors of the fields, which
                have one width then, as of `vectors`; see `_towers.tower_modules`.
            tower_outputs: their ratio.
        """
        parts = []
        units, field_units = self._options["units"], self._options["field_units"]
        if self._ids:
            several = self._widths(field_units, units)
            widths = several if {*several} != {units} else units
            if towers is None:
                vectors = self._vectors(widths)
                if not isinstance(widths, int):  # vectors of several widths are a list
                    vectors = concatenated(vectors, "embedding_vectors")
                parts.append(self._flattened(vectors))
            else:
                vectors = self._vectors(widths, None if isinstance(widths, int) else units)
                vectors = self.dropped(vectors)
                parts += tower_modules(vectors, self._names, towers, tower_outputs)
        if self._sparse is not None:
            parts.append(self._sparse_vector(sparse_units))
        return concatenated([*parts, *self._numbers], "flat_input")

    def _sparse_vector(self, units: int | None) -> Any:
        """One vector of all raw sparse ids of a row."""
        dim = self._schema.sparse_dim
        if units is None and dim <= MAX_MULTI_HOT:
            return self._sparse_linear(dim, "identity", "multi_hot", trainable=False)
        return self._sparse_linear(units or _SPARSE_UNITS, self._initializer, "embedding_sparse")

    def deep_input(self, vectors: Any) -> Any:
        """The input of dense layers: all vectors [B, F, units] and `numbers`, [B, any]."""
        return concatenated([self._flattened(vectors), *self._numbers], "deep_input")

    def dropped(self, vectors: Any) -> Any:
        """The vectors, of whose components a share is dropped in training."""
        dropout = self._options["embedding_dropout"]
        return tf.keras.layers.Dropout(dropout, name="embedding_dropout")(vectors)

    def _flattened(self, vectors: Any) -> Any:
        """The vectors [B, F, units] side by side, of whose components a share is dropped."""
        return self.dropped(tf.keras.layers.Flatten(name="flat")(vectors))

    @property
    def _numbers(self) -> list[Any]:
        return [] if self.numbers is None else [self.numbers]

    def linear(self) -> list[Any]:
        """Terms [B, L] of a linear model: a weight for each category, bucket, number and sparse id.

        Those of categories and buckets are regularized.
        """
        labels = len(self.labels)
        terms = []
        if self._ids:
            l2 = self._options["linear_l2"]
            terms.append(self._embedding(labels, "zeros", l2, "linear", pooling="sum"))
        if self.numbers is not None:
            weights = tf.keras.layers.Dense(
                labels, use_bias=False, kernel_initializer="zeros", name="linear_numbers"
            )
            terms.append(weights(self.numbers))
        if self._sparse is not None:
            terms.append(self._sparse_linear(labels, "zeros", "linear_sparse"))
        return terms

    @property
    def _names(self) -> list[str]:
        """The names of the fields that have vectors, in the order of `num_rows`."""
        return [*self._schema.fields, *self._schema.continuous, *self._schema.bags]

    def _widths(self, field_units: Sequence[str] | None, units: int) -> list[int]:
        """The width of each field."""
        fields = list(zip(self._names, self.num_rows, strict=True))
        return field_widths(field_units, fields, units)

    @property
    def _initializer(self) -> Any:
        return tf.keras.initializers.RandomNormal(stddev=self._options["stddev"])

    def _vectors(self, units: int | list[int], projected_units: int | None = None) -> Any:
        l2 = self._options["l2"]
        return self._embedding(
            units, self._initializer, l2, "embedding", projected_units=projected_units
        )

    def _embedding(
        self,
        units: int | list[int],
        initializer: Any,
        l2: float,
        name: str,
        pooling: Literal["sum"] | None = None,
        projected_units: int | None = None,
    ) -> Any:
        embedding = FieldEmbedding(
            self.num_rows,
            units,
            pooling=pooling,
            num_bags=len(self._schema.bags),
            embeddings_initializer=initializer,
            projected_units=projected_units,
            l2=l2,
            out_of_range="wrap",  # hashes of categories
            name=name,
        )
        return embedding(self._ids[0] if len(self._ids) == 1 else self._ids)

    def _sparse_linear(
        self, units: int, initializer: Any, name: str, trainable: bool = True
    ) -> Any:
        linear = SparseLinear(
            units,
            self._schema.sparse_dim,
            use_bias=False,
            kernel_initializer=initializer,
            trainable=trainable,
            name=name,
        )
        return linear(self._sparse)

    def logits(self, x: Any, name: str = "deep_logit", initializer: str = "glorot_uniform") -> Any:
        """A term [B, L] that is linear in the outputs x [B, any] of a part of the model."""
        labels = len(self.labels)
        dense = tf.keras.layers.Dense(
            labels, use_bias=False, kernel_initializer=initializer, name=name
        )
        return dense(x)

    def pairs(self, vectors: Any) -> Any:
        """A term [B, L]: the second-order term of a factorization machine.

        Raises:
            ValueError: there are fewer than two fields.
        """
        if vectors.shape[1] < 2:
            raise ValueError(
                "schema must have at least two fields whose vectors are multiplied, got one: use "
                "logistic or sparse_mlp"
            )
        if len(self.labels) == 1:
            return FactorizationMachine(name="pairs")(vectors)
        return self.logits(FactorizationMachine(pool=False, name="pairs")(vectors), "pairs_logit")

    def towers(self, inputs: Sequence[Any], hidden: Sequence[int], dropout: float) -> Any:
        """A term [B, L]: the logit of each label, of a dense net on its own input [B, any]."""
        logits = []
        for i, x in enumerate(inputs):
            x = dense_net(x, hidden, dropout, name=f"tower_{i}")
            logits.append(tf.keras.layers.Dense(1, use_bias=False, name=f"tower_{i}_logit")(x))
        return concatenated(logits, "tower_logits")

    def tree_logits(self, dataset: tf.data.Dataset, ensembles: int | None) -> list[Any]:
        """The logits [B, 1] of boosted trees, one for each label; see `_tree_logits.tree_logits`.

        Args:
            dataset: batches in the layout "keyed_fields".
            ensembles: number of ensembles for each label; None: the default.
        """
        present = self.inputs.get("continuous_present")
        others = [] if present is None else [self.inputs["continuous"]]
        first, statistics, means = len(others), None, []
        if self._statistics is not None:
            columns = 0 if present is None else int(present.shape[1])
            statistics = TreeStatistics(self._statistics, columns)
            means = self._statistics.outputs
        if self._raw is not None and self._schema.sparse_dim <= MAX_MULTI_HOT:
            dim = self._schema.sparse_dim
            multi_hot = SparseLinear(
                dim,
                dim,
                use_bias=False,
                kernel_initializer="identity",
                trainable=False,
                name="tree_multi_hot",
            )
            others.append(multi_hot(self._raw))
        parts = [*others[:first], *means, *others[first:]]
        if not parts:
            return []
        x = concatenated(parts, "tree_input")
        options = tree_options(self._num_examples, ensembles)
        return tree_logits(
            self.inputs, x, others, present, dataset, self.labels, statistics, options
        )

    def model(
        self,
        name: str,
        terms: Sequence[Any],
        others: Sequence[Any] = (),
        share: float | None = None,
    ) -> tf.keras.Model:
        """The model whose logits are the sum of the terms [B, L] and a bias.

        Args:
            name: name of the model.
            terms: at least one.
            others: logits [B, 1] of another model, one for each label, with which the mean is taken
                in inference; or none.
            share: their weight in the mean; None: 1/2.

        Raises:
            ValueError: `share` is not in [0, 1].
        """
        share = 0.5 if share is None else share
        if not 0 <= share <= 1:
            raise ValueError(f"tree_share must be in [0, 1], got {share}")
        logits = terms[0] if len(terms) == 1 else tf.keras.layers.Add(name="sum")(list(terms))
        logits = Bias(self.base, name="logit")(logits)
        if others:
            both = [logits, concatenated(others, "tree_logits")]
            logits = MeanLogit(share, name="mean_logit")(both)
        elif not self._keyed:
            self.inputs.pop(ROW_KEYS, None)  # only trees that gained nothing had statistics
        return tf.keras.Model(self.inputs, probabilities(logits, self.labels), name=name)


def dense_net(x: Any, hidden: Sequence[int], dropout: float, name: str = "dense") -> Any:
    """Dense layers with ReLU of the widths `hidden`, each followed by dropout."""
    for i, width in enumerate(hidden):
        x = tf.keras.layers.Dense(width, activation="relu", name=f"{name}_{i}")(x)
        x = tf.keras.layers.Dropout(dropout, name=f"{name}_{i}_dropout")(x)
    return x


def concatenated(parts: Sequence[Any], name: str) -> Any:
    """The parts [B, ...] side by side along axis 1."""
    if len(parts) == 1:
        return parts[0]
    return tf.keras.layers.Concatenate(axis=1, name=name)(list(parts))


def field_widths(
    field_units: Sequence[str] | None, fields: Sequence[tuple[str, int]], units: int
) -> list[int]:
    """Returns the width of the vector of each field.

    Args:
        field_units: None: `units` for all. ["auto"]: the fourth root of the number of rows of the
            field, rounded, at least 1 and at most `units`; the rule of thumb of "Introducing
            TensorFlow Feature Columns" (Google Developers Blog, 2017), which Wang et al., "Deep &
            Cross Network for Ad Click Predictions", ADKDD 2017, use with a factor of 6.
            Otherwise "NAME:WIDTH" of some fields; the others have the width `units`.
        fields: name and number of rows of each.
        units: width of the other fields.

    Raises:
        ValueError: an item has another form, a width is not positive, or there is no such field.
    """
    if field_units is None:
        return [units] * len(fields)
    if list(field_units) == [AUTO]:
        return [max(1, min(units, round(rows**0.25))) for _, rows in fields]
    widths = {name: units for name, _ in fields}
    for item in field_units:
        name, colon, width = item.rpartition(":")
        if not colon or not width.isdecimal() or int(width) < 1:
            raise ValueError(
                f"field_units must be auto, or NAME:WIDTH with a positive width, got {item!r}"
            )
        if name not in widths:
            raise ValueError(
                f"field_units must name fields, got {name!r}; the fields are {', '.join(widths)}"
            )
        widths[name] = int(width)
    return list(widths.values())
