"""Fields and groups of tables in `TPUEmbedding`: products, gradients, and models on fields."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.models.test_field_models import SMALL, data_of, features_of
from tests.pairwise import ONE_TF, SLOW
from twml_ops import core, export, layers, models, ops, optimizers, tpu
from twml_ops.data import Schema
from twml_ops.layers import SparseTable
from twml_ops.ops._tape import tf_variable

B = 6
EMBEDDING = tf.tpu.experimental.embedding
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def bag(rng, weighted):
    ids = rng.integers(-1, 12, 12)
    parts = [ids] if not weighted else [ids, rng.normal(size=12).astype(np.float32)]
    ragged = [tf.RaggedTensor.from_row_lengths(x, [3, 0, 1, 5, 1, 2]) for x in parts]
    return ragged if weighted else ragged[0]


def fields_model(columns, bags, **options):
    """A model of one `FieldEmbedding` on `columns` fields and two bags, and its features."""
    rng = np.random.default_rng(0)
    symbolic, features = [], []
    if columns:
        symbolic.append(tf.keras.Input([columns], dtype="int64"))
        features.append(tf.constant(rng.integers(-1, 9, (B, columns))))
    for weighted in (False, True) if bags else ():
        made = [tf.keras.Input([None], dtype="int64", ragged=True)]
        made += [tf.keras.Input([None], dtype="float32", ragged=True)] if weighted else []
        symbolic.append(made if weighted else made[0])
        features.append(bag(rng, weighted))
    num_rows = [10, 12, 11][:columns] + [14, 13] * bags
    layer = layers.FieldEmbedding(num_rows, num_bags=2 * bags, name="fields", **options)
    found = layer(symbolic if len(symbolic) > 1 else symbolic[0])
    if isinstance(found, list):
        found = tf.keras.layers.Concatenate()(found)
    return symbolic, tf.keras.layers.Flatten()(found), features


def groups_model():
    """A model of a `GroupedSparseLinear` with a shared table, and its features."""
    rng = np.random.default_rng(1)
    tables = {"page": SparseTable(20, 3), "user": SparseTable(8, 2, out_of_range="wrap")}
    shares = {"seen": "page", "clicked": "page", "user": "user"}
    symbolic = {
        name: [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
        for name in shares
    }
    found = layers.GroupedSparseLinear(tables, shares, name="groups")(symbolic)
    features = {}
    for name in shares:
        ids, weights = bag(rng, True)
        features[name] = [ids + 1 if name != "user" else ids * 7, weights]
    return symbolic, tf.keras.layers.Concatenate()([found[name] for name in shares]), features


CASES = {
    "a matrix": lambda: fields_model(3, False, units=4),
    "the sum of a matrix": lambda: fields_model(3, False, units=1, pooling="sum"),
    "the mean of a matrix": lambda: fields_model(3, False, units=2, pooling="mean"),
    "bags, mean": lambda: fields_model(0, True, units=3, out_of_range="wrap"),
    "a matrix and bags, sqrtn": lambda: fields_model(
        2, True, units=3, bag_combiner="sqrtn", pooling="sqrtn"
    ),
    "widths": lambda: fields_model(2, True, units=[4, 2, 2, 4], bag_combiner="sum"),
    "projected": lambda: fields_model(3, False, units=[1, 2, 1], projected_units=3, pooling="sum"),
    "l2": lambda: fields_model(2, True, units=2, l2=0.1, pooling="sum"),
    "groups": groups_model,
}
FEATURES = {  # features and tables of some cases
    "a matrix": (["fields/field_0", "fields/field_1", "fields/field_2"], {"fields"}),
    "the sum of a matrix": (["fields"], {"fields"}),
    "widths": (
        ["fields/field_0", "fields/field_1", "fields/field_2", "fields/field_3"],
        {"fields/embeddings_2", "fields/embeddings_4"},
    ),
    "groups": (["groups/clicked", "groups/seen", "groups/user"], {"groups/page", "groups/user"}),
}


def made_of(case):
    tf.keras.utils.set_random_seed(3)
    symbolic, hidden, features = CASES[case]()
    made = tf.keras.Model(symbolic, tf.keras.layers.Dense(1, name="head")(hidden))
    made.compile(optimizers.SGD(0.1), "mse", jit_compile=False)
    return made, features if len(features) > 1 else features[0]


def loss_of(made, features):
    return tf.reduce_sum(made(features, training=True) ** 2) + sum(made.losses)


def tables_of(made):
    return {t.name: tf_variable(t.variable) for _, t in tpu.table_layers.lookup_tables(made)}


ON_BOTH = ("a matrix and bags, sqrtn", "widths", "groups")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in ON_BOTH else ONE_TF) for c in CASES]
)
def test_products_and_gradients_equal_the_layers(case):
    made, features = made_of(case)
    with tf.GradientTape() as tape:
        want = loss_of(made, features)
    variables = [tf_variable(v) for v in made.trainable_variables]
    wanted = dict(zip(map(id, variables), tape.gradient(want, variables), strict=True))

    configs = tpu.feature_configs(made)
    embedding = tpu.create_embedding(configs)
    inputs = tpu.lookup_inputs(made, tpu.table_inputs(made)(features))
    dense = tf_variable(made.get_layer("head").kernel)
    with tf.GradientTape() as tape:
        activations = tpu.host_lookup(embedding, inputs, configs)
        with tpu.use_lookups(activations):
            got = loss_of(made, features)
    by_name = {config.name: table for config, table in embedding.embedding_tables.items()}
    found, by_dense = tape.gradient(got, [by_name, dense])
    np.testing.assert_allclose(got, want, **TOLERANCE)
    np.testing.assert_allclose(by_dense, wanted[id(dense)], **TOLERANCE)
    tables = tables_of(made)
    assert {*by_name} == {*tables}
    for name, gradient in found.items():
        theirs, ours = (tf.convert_to_tensor(g) for g in (gradient, wanted[id(tables[name])]))
        np.testing.assert_allclose(theirs, ours, **TOLERANCE)
        assert np.any(theirs)


@pytest.mark.parametrize("case", FEATURES)
def test_a_field_or_group_is_a_feature_and_shares_the_table_that_the_layer_shares(case):
    made, _ = made_of(case)
    configs = tpu.feature_configs(made)
    features, tables = FEATURES[case]
    assert sorted(configs) == features
    assert {id(c.table) for c in configs.values()} == {
        id(c.table) for c in {c.table.name: c for c in configs.values()}.values()
    }
    assert {c.table.name for c in configs.values()} == tables
    rows = {c.table.name: c.table.vocabulary_size for c in configs.values()}
    assert rows == {name: table.shape[0] for name, table in tables_of(made).items()}


@ONE_TF
def test_tables_of_fields_and_groups_are_copied_both_ways():
    for case in ("widths", "groups"):
        made, other = made_of(case)[0], made_of(case)[0]
        for table in tables_of(made).values():
            table.assign_add(tf.ones_like(table))
        embedding = tpu.create_embedding(tpu.feature_configs(other))
        tpu.copy_tables_to_embedding(made, embedding)
        tpu.copy_tables_from_embedding(other, embedding)
        for ours, theirs in zip(tables_of(made).values(), tables_of(other).values(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_ids_out_of_range_are_rejected_on_the_host():
    for case in ("a matrix", "groups"):
        made, features = made_of(case)
        inputs = tpu.table_inputs(made)(features)
        wrong = tf.nest.map_structure(lambda x: x + 100 if x.dtype.is_integer else x, inputs)
        with pytest.raises(tf.errors.InvalidArgumentError):
            tpu.lookup_inputs(made, wrong)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: layers.FieldEmbedding(4, 2, kernel_dtype="bfloat16"), "kernel_dtype of layer"),
        (lambda: layers.FieldEmbedding(4, 2, embeddings_regularizer="l2"), "embeddings_regul"),
        (
            lambda: layers.GroupedSparseLinear({"a": SparseTable(4, 2, dtype="bfloat16")}),
            "dtype of table 'a' of layer",
        ),
        (
            lambda: layers.GroupedSparseLinear({"a": SparseTable(4, 2, regularizer="l2")}),
            "regularizer of table 'a' of layer",
        ),
    ],
)
def test_options_of_tables_that_a_tpu_does_not_support_are_rejected(build, message):
    layer = build()
    inputs = tf.keras.Input([1], dtype="int64")
    grouped = isinstance(layer, layers.GroupedSparseLinear)
    outputs = layer({"a": inputs} if grouped else inputs)
    made = tf.keras.Model(inputs, outputs["a"] if grouped else outputs)
    with pytest.raises(ValueError, match=message):
        tpu.feature_configs(made, optimizers.SGD(0.1))


@ONE_TF
def test_a_layer_that_is_called_twice_is_rejected():
    inputs = [tf.keras.Input([2], dtype="int64") for _ in range(2)]
    layer = layers.FieldEmbedding([4, 4], 2, name="shared")
    made = tf.keras.Model(inputs, tf.keras.layers.Add()([layer(x) for x in inputs]))
    with pytest.raises(ValueError, match=r"'shared' must be called once.*got 2 calls"):
        tpu.feature_configs(made, optimizers.SGD(0.1))


@ONE_TF
def test_a_frozen_table_stays_as_it_is():
    made, _ = made_of("groups")
    made.get_layer("groups").trainable = False
    configs = tpu.feature_configs(made, optimizers.Adagrad(0.1))
    assert {c.table.optimizer.learning_rate for c in configs.values()} == {0.0}
    assert all(
        isinstance(c.table.optimizer, tf.tpu.experimental.embedding.SGD) for c in configs.values()
    )


NUMBERS = Schema(("a", "b"), ("c", "d"), 0, "x")
BAGS = Schema(("a", "b"), ("c", "s", "t"), 0, "x", bags=("s", "t"), bag_weights={"t": "w"})
OPTIONS = {
    "dcn": {"trees": False, "dropout": 0.0, "embedding_dropout": 0.0},
    "deepfm": {"dropout": 0.0, "embedding_dropout": 0.0, "l2": 0.01},
    "dlrm": {"dropout": 0.0, "embedding_dropout": 0.0},
    "fm": {},
}
STEPS = [
    pytest.param("fm", BAGS, False, marks=SLOW),
    *(pytest.param(kind, NUMBERS, True, marks=SLOW) for kind in ("dcn", "deepfm", "dlrm")),
]


@pytest.mark.parametrize(("kind", "schema", "compiled"), STEPS)
def test_a_step_of_a_model_on_fields_without_tables_equals_the_whole_model(kind, schema, compiled):
    data = data_of(schema, name=kind)

    def build():
        tf.keras.utils.set_random_seed(0)
        return models.get(kind)(schema, data, **SMALL[kind], **OPTIONS[kind])

    whole = build()
    with tpu.external_tables():
        without = build()
    tpu.copy_dense_weights(whole, without)
    features = features_of(schema, B, seed=4, name=kind)
    labels = tf.constant(np.arange(B).reshape(B, 1) % 2, tf.float32)

    def loss_with(model, given):
        scores = model(given, training=True)
        losses = tf.keras.losses.binary_crossentropy(labels, scores)
        return tf.reduce_mean(losses) + sum(model.losses)

    with tf.GradientTape() as tape:
        want = loss_with(whole, features)
    variables = [tf_variable(v) for v in whole.trainable_variables]
    wanted = dict(zip(map(id, variables), tape.gradient(want, variables), strict=True))

    configs = tpu.feature_configs(whole, optimizers.Adagrad(0.1))
    embedding = tpu.create_embedding(configs)
    host = tpu.table_inputs(whole)
    batches = tf.data.Dataset.from_tensors(features)
    ids, weights = next(iter(batches.map(lambda f: tpu.lookup_inputs(whole, host(f)))))
    dense = [v for v in without.trainable_variables if v.shape[0]]

    def step(activations, features):
        static = ops.xla_compatible() if compiled else contextlib.nullcontext()
        with static, tf.GradientTape() as tape:
            tape.watch(activations)
            with tpu.use_lookups(activations):
                loss = loss_with(without, features)
        return loss, *tape.gradient(loss, [activations, [tf_variable(v) for v in dense]])

    step = tf.function(step, jit_compile=True, autograph=False) if compiled else step
    with tf.GradientTape() as tape:
        activations = tpu.host_lookup(embedding, (ids, weights), configs)
    got, by_activation, by_dense = step(activations, features)
    np.testing.assert_allclose(got, want, **TOLERANCE)
    tables = tables_of(whole)
    by_name = {config.name: table for config, table in embedding.embedding_tables.items()}
    found = tape.gradient(activations, by_name, by_activation)
    for name, gradient in found.items():
        ours = wanted.pop(id(tables[name]))
        np.testing.assert_allclose(*map(tf.convert_to_tensor, (gradient, ours)), **TOLERANCE)
    for ours, theirs in zip(wanted.values(), by_dense, strict=True):
        np.testing.assert_allclose(theirs, ours, **TOLERANCE)


@ONE_TF
def test_a_model_on_raw_ids_is_divided_once_the_norm_before_its_table_is_frozen():
    schema = Schema((), ("c", "d"), 50, "x")
    made = models.get("logistic")(schema, data_of(schema, name="logistic"))
    with pytest.raises(ValueError, match="'sparse_norm' is before a table and has trainable"):
        tpu.table_inputs(made)
    made.get_layer("sparse_norm").trainable = False
    for _, table in tpu.table_layers.lookup_tables(made):
        table.variable.assign(tf.random.stateless_normal(table.shape, [1, 2]))
    features = features_of(schema, B, name="logistic")
    want = made(features)
    configs = tpu.feature_configs(made, optimizers.SGD(0.1))
    inputs = tpu.lookup_inputs(made, tpu.table_inputs(made)(features))
    with tpu.use_lookups(tpu.host_lookup(tpu.create_embedding(configs), inputs, configs)):
        np.testing.assert_allclose(made(features), want, **TOLERANCE)


def test_a_checkpoint_of_tables_on_a_tpu_becomes_a_scorer(tmp_path):
    def build():
        tf.keras.utils.set_random_seed(5)
        ids = tf.keras.Input([3], dtype="int64", name="ids")
        sparse = tf.keras.Input([None], dtype="int64", ragged=True, name="x_ids")
        tables = {"page": SparseTable(9, 2), "user": SparseTable(9, 3)}
        fields = layers.FieldEmbedding([8, 9, 9], [2, 3, 2], name="fields")(ids)
        groups = layers.GroupedSparseLinear(tables, name="groups")(
            {name: sparse for name in tables}
        )
        hidden = tf.keras.layers.Concatenate()([*fields, groups["page"], groups["user"]])
        head = tf.keras.layers.Dense(1, "sigmoid", name="head")
        return tf.keras.Model([ids, sparse], head(hidden))

    whole = build()
    with tpu.external_tables():
        trained = build()
    configs = tpu.feature_configs(whole, optimizers.Adagrad(0.1))
    embedding = EMBEDDING.TPUEmbedding(dict(configs), None)  # as on a TPU, here on the CPU
    rng = np.random.default_rng(6)
    for weight in (*embedding.embedding_tables.values(), *trained.get_layer("head").weights):
        weight.assign(rng.normal(size=weight.shape))
    sparse = tf.RaggedTensor.from_row_lengths(rng.integers(0, 9, 12), [3, 0, 1, 5, 1, 2])
    batch = [tf.constant(rng.integers(0, 7, (B, 3))), sparse]
    inputs = tpu.lookup_inputs(whole, tpu.table_inputs(whole)(batch))
    with tpu.use_lookups(tpu.host_lookup(embedding, inputs, configs)):
        want = trained(batch)
    path = tf.train.Checkpoint(model=trained, embedding=embedding).save(tmp_path / "checkpoint")

    with tpu.external_tables():
        restored = build()
    tables = tpu.create_embedding(tpu.feature_configs(whole, optimizers.Adagrad(0.1)))
    checkpoint = tf.train.Checkpoint(model=restored, embedding=tables)
    checkpoint.restore(path).expect_partial()
    tpu.copy_tables_from_embedding(whole, tables)
    tpu.copy_dense_weights(restored, whole)
    np.testing.assert_allclose(whole(batch), want, **TOLERANCE)
    export.to_scorer(whole, tmp_path / "scorer")
    flat = {"x_ids": sparse.flat_values.numpy(), "x_row_splits": sparse.row_splits.numpy()}
    got = core.Scorer.load(tmp_path / "scorer").predict({"ids": batch[0].numpy(), **flat})
    np.testing.assert_allclose(got, want, **TOLERANCE)
