"""The model and the data of the tests of parameter servers."""

import numpy as np
import tensorflow as tf

from twml_ops import layers, optimizers, research
from twml_ops.planning import ShardedTable, ShardingPlan

ROWS, BATCH, ENTRIES = 300, 16, 6
CAPACITY = 24


def builder(norm=False):
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    batch = layers.MaxNorm(ROWS)(inputs) if norm else inputs
    hidden = layers.SparseLinear(8, ROWS, activation="relu", name="table")(batch)
    hidden = tf.keras.layers.Dense(6, activation="relu")(hidden)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


class RowSums(tf.keras.layers.Layer):
    """The sum of the values of each row, [B, 1]."""

    def call(self, values):
        return tf.reduce_sum(values, axis=1)[:, None]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 1)


def model_with_states(changing=True):
    """States that batches change, by three rules, and weights that nothing changes."""
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    sums = RowSums()(inputs[1])
    fixed = tf.keras.layers.Dense(3, trainable=False, name="fixed")(sums)
    moving = tf.keras.layers.BatchNormalization(momentum=0.9, trainable=changing)(sums)
    hidden = [fixed, moving, layers.SparseLinear(4, ROWS, name="table")(inputs)]
    for norm in (layers.MaxNorm, layers.OnlineStandardize) if changing else ():
        table = layers.SparseLinear(4, ROWS, activation="relu", name=f"of_{norm.__name__}")
        hidden.append(table(norm(ROWS)(inputs)))
    joined = tf.keras.layers.Concatenate()(hidden)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(joined))


def towers_model(l2=0.01, rank=None):
    """Two towers of two bags each, one with weights, behind which is a dense layer."""
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    outputs = []
    for i in range(2):
        vectors = layers.FieldEmbedding(
            [ROWS + 1] * 2,
            4,
            num_bags=2,
            bag_combiner="sum",
            l2=l2,
            embeddings_initializer="normal",
            name=f"fields_{i}",
        )
        module = research.TowerModule(0.5, rank=rank, name=f"module_{i}")
        tower = research.Tower(vectors, module, name=f"tower_{i}")
        outputs.append(tower([inputs[0], inputs]))
    joined = tf.keras.layers.Concatenate()(outputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(joined))


def whole_batches(part=0, parts=1):
    """Returns eight batches, or of each only part `part` of `parts`."""
    rng = np.random.default_rng(0)
    result = []
    for _ in range(8):
        ids = rng.integers(0, ROWS, [BATCH, ENTRIES])
        values = rng.normal(size=[BATCH, ENTRIES]).astype("f")
        labels = (ids.min(axis=1, keepdims=True) < 40).astype("f")
        rows = slice(part * BATCH // parts, (part + 1) * BATCH // parts)
        x = tuple(tf.RaggedTensor.from_tensor(t[rows]) for t in (ids, values))
        result.append((x, labels[rows]))
    return result


def batches(context):
    return whole_batches(context.input_pipeline_id, context.num_input_pipelines)


def same(want, got, tolerance=0.0):
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


class Half(tf.keras.layers.Layer):
    """The first or the second half of a batch."""

    def __init__(self, second, **kwargs):
        super().__init__(**kwargs)
        self.second = second

    def call(self, batch):
        n = batch.nrows() // 2
        return batch[n:] if self.second else batch[:n]

    def compute_output_shape(self, input_shape):
        return input_shape


class Join(tf.keras.layers.Layer):
    """The batch of two halves."""

    def call(self, halves):
        return tf.concat(halves, axis=0)

    def compute_output_shape(self, input_shape):
        return input_shape[0]


def dynamic_model(dense=True, uses=1, in_halves=False, **options):
    """Ids in a table of few rows, `uses` times; without `dense`, other ops are elementwise."""
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    options = {"activation": "relu", "use_bias": False, "name": "ids", **options}
    layer = layers.DynamicSparseLinear(8, CAPACITY, **options)

    def product(inputs):
        found = layer(inputs)
        return found + layer([inputs[0] // 3, inputs[1]]) if uses == 2 else found  # other ids

    if in_halves:
        halves = [product([Half(second)(t) for t in inputs]) for second in (False, True)]
        # Keras calls layers that are farther from the output first.
        hidden = Join()([tf.keras.layers.Activation("linear")(halves[0]), halves[1]])
    else:
        hidden = product(inputs)
    if dense:
        hidden = tf.keras.layers.Dense(1, activation="sigmoid")(hidden)
    return tf.keras.Model(inputs, hidden)


def id_batches(number=8, size=8, part=0, parts=1):
    """Batches with ids of 64 bits, of which some are frequent and others evict rows, or a part."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(number):
        ids = rng.zipf(1.3, [size, 3]).astype(np.int64) * (2**40 + 7919) - 2**62
        values = rng.uniform(0.5, 2, [size, 3]).astype("f")
        labels = rng.uniform(size=(size, 1)).astype("f")
        rows = slice(part * size // parts, (part + 1) * size // parts)
        x = tuple(tf.RaggedTensor.from_tensor(t[rows]) for t in (ids, values))
        found.append((x, labels[rows]))
    return found


RULES = {
    "sgd": lambda: optimizers.SGD(0.5),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "rowwise": lambda: optimizers.RowWiseAdagrad(0.1),
    "adam": lambda: optimizers.LazyAdam(0.01, weight_decay=0.1),
}


def names_of_tables(ways, rules=tuple(RULES)):
    """ "way_rule" of each table. Row-wise Adagrad has a number for each part of a divided row."""
    pairs = [(way, rule) for way in ways for rule in rules]
    return [f"{w}_{r}" for w, r in pairs if not (r == "rowwise" and w.startswith("column"))]


def model_of_tables(names):
    """Tables of different sizes; all ops but ours are elementwise, so that bits can be equal."""
    tf.keras.utils.set_random_seed(7)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    tables = {n: layers.SparseTable(*((ROWS, 16), (75, 32))[i % 2]) for i, n in enumerate(names)}
    batch = {n: (inputs, inputs[0] // 4)[i % 2] for i, n in enumerate(names)}
    found = layers.GroupedSparseLinear(tables, {n: n for n in names}, name="tables")(batch)
    return tf.keras.Model(inputs, tf.keras.layers.Concatenate()(list(found.values())))


def optimizer_of_tables(names):
    rules = {f"^tables/{n}(:|$)": RULES[n.rpartition("_")[2]]() for n in names}
    return optimizers.CompositeOptimizer(optimizers.SGD(0.1), rules)


def plan_of_tables(names, servers):
    """Each table by the way in its name, with its first part on another server."""
    tables = (ShardedTable(n.partition("_")[0], i % servers) for i, n in enumerate(names))
    return ShardingPlan(tuple(tables), (0.0,) * servers, (0.0,) * servers)


def assert_close_by_way(names, want, got):
    """Bits are equal where no products of servers, or gradients of workers, are added."""
    for name, a, b in zip(names, want, got, strict=True):
        way = name.partition("_")[0]
        tolerance = 2e-6 if "row" in way or way == "replicated" else 0.0
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance, err_msg=name)
