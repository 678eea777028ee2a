"""The rows of a learned hash: own ones, clusters, and hashes, in every form of export."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, export, layers, optimizers, research

RNG = np.random.default_rng(3)
IDS = np.stack([RNG.zipf(1.3, 900) % 60, RNG.integers(0, 40, 900)], axis=1)
IDS[::9] = -1
PLANS = [research.HashPlan(3, 4, 5, 10), research.HashPlan(2, 3, 4, 20)]


def teacher(num_fields=2, num_bags=0, data=IDS):
    """Counts, rows, and vectors whose first component is the parity of the row."""
    categories = layers.CategoryRows(num_fields, min_count=1, num_bags=num_bags)
    counts = categories.new_counts()
    categories.count(counts, data)
    categories.adapt_from_counts(counts)
    embedding = layers.FieldEmbedding(categories.num_rows, 2, num_bags=num_bags)
    embedding.build()
    rows = np.concatenate([np.arange(n) - 1 for n in categories.num_rows])
    embedding.embeddings.assign(np.stack([rows % 2, np.zeros(len(rows))], axis=1))
    return counts, categories, embedding


def learned(plans=PLANS):
    layer = research.LearnedHash(2)
    layer.learn(*teacher(), plans)
    return layer


def test_frequent_ids_have_rows_the_next_ones_clusters_and_the_others_hashes():
    layer, (_, categories, _) = learned(), teacher()
    rows, ranks = layer(IDS).numpy(), categories(IDS).numpy()
    np.testing.assert_array_equal(rows < 0, IDS < 0)
    for field, plan in enumerate(PLANS):
        row, rank = rows[:, field], ranks[:, field]
        own = (rank >= 1) & (rank <= plan.own)
        np.testing.assert_array_equal(row[own], plan.hashed + plan.clusters + rank[own] - 1)
        clustered = (rank > plan.own) & (rank <= plan.own + plan.clustered)
        by_parity = [set(row[clustered & (rank % 2 == parity)]) for parity in (0, 1)]
        assert not by_parity[0] & by_parity[1]
        assert min(by_parity[0] | by_parity[1]) >= plan.hashed
        assert max(by_parity[0] | by_parity[1]) < plan.hashed + plan.clusters
        others = (rank >= 0) & ~own & ~clustered
        assert np.all(row[others] < plan.hashed)
        assert layer.num_rows[field] == 1 + plan.num_rows()


def test_unseen_ids_are_spread_over_the_hashed_rows_only():
    layer = learned()
    unseen = np.arange(10_000, 14_000).reshape(-1, 2)
    rows = layer(unseen).numpy()
    for field, plan in enumerate(PLANS):
        counts = np.bincount(rows[:, field], minlength=plan.hashed)
        assert len(counts) == plan.hashed
        assert counts.min() > 0.8 * counts.mean()


@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.0, 1.0), (0.5, 0.0), (0.5, 0.25), (1.0, 0.0)])
@pytest.mark.parametrize("num_bytes", [64, 5000, 40_000, 10**6])
def test_a_plan_uses_the_memory_and_no_more(num_bytes, shares):
    plan = research.plan_hash(num_bytes, 16, 1000, *shares)
    assert num_bytes - 64 < plan.num_bytes(16) <= num_bytes
    assert plan.hashed >= 1
    assert plan.own + plan.clustered <= 1000
    assert plan.clusters <= plan.clustered
    if num_bytes == 10**6:  # enough for all
        assert plan.own == 1000
        return
    own = plan.own * (64 + research.BYTES_PER_ID)
    clusters = plan.clusters * 64 + plan.clustered * research.BYTES_PER_ID
    for used, share in zip((own, clusters), shares, strict=True):
        assert share * (num_bytes - 64) - 2 * 68 < used <= share * (num_bytes - 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((63, 16, 5), r"num_bytes at least 4 \* units, the size of one row, got 16 and 63"),
        ((64, 0, 5), "units must be positive"),
        ((64, 16, 5, 0.6, 0.5), "their sum must be at most 1, got 0.6 and 0.5"),
        ((64, 16, 5, -0.1), "must not be negative"),
        ((64, 16, 5, 0.5, float("nan")), "got 0.5 and nan"),
    ],
)
def test_plans_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        research.plan_hash(*arguments)


def test_ids_of_equal_seeds_have_equal_rows():
    np.testing.assert_array_equal(learned()(IDS), learned()(IDS))


def test_more_clusters_than_ids_give_each_id_a_row():
    layer = research.LearnedHash(2)
    layer.learn(*teacher(), [research.HashPlan(1, 100, 1, 100)] * 2)
    known = np.unique(IDS[:, 1][IDS[:, 1] >= 0])
    rows = layer(np.stack([known, known], axis=1)).numpy()[:, 1]
    assert len(set(rows)) == len(known)


def model_of(rows):
    inputs = tf.keras.Input((2,), dtype="int64")
    x = layers.FieldEmbedding(rows.num_rows, 4)(rows(inputs))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(x)))


def test_a_model_is_trained_cloned_and_saved_with_its_map(tmp_path, fresh_keras):
    model = model_of(learned())
    model.compile(optimizers.Adagrad(0.1), "mse", jit_compile=False)
    model.fit(IDS, np.ones((len(IDS), 1), np.float32), epochs=1, verbose=0)
    ids = np.concatenate([IDS[:20], [[10**12, 77]]])
    wanted = model(ids)
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(tf.keras.models.load_model(tmp_path / "m.keras")(ids), wanted)
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone(ids), wanted)


def test_exports_give_the_same(tmp_path, fresh_keras):
    model = model_of(learned())
    ids = np.concatenate([IDS[:20], [[10**12, 77]]])
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(tmp_path / "stock").signatures["serving_default"]
    (got,) = served(tf.constant(ids)).values()
    np.testing.assert_allclose(got, model(ids), rtol=1e-5, atol=1e-7)
    export.to_scorer(model, tmp_path / "scorer")
    scorer = core.Scorer.load(tmp_path / "scorer")
    got = scorer.predict({scorer.inputs[0]: ids})
    np.testing.assert_allclose(got, model(ids), rtol=0, atol=1e-6)


def test_bags_have_the_vectors_of_the_last_fields(tmp_path):
    matrix = tf.constant([[1], [1], [2]], tf.int64)
    bag = tf.ragged.constant([[5, 5, 6], [], [7, -1]], dtype=tf.int64)
    layer = research.LearnedHash(2, num_bags=1)
    layer.learn(
        *teacher(2, 1, [matrix, bag]),
        [research.HashPlan(1, 0, 1, 0), research.HashPlan(1, 2, 1, 2)],
    )
    rows = layer([matrix, bag])
    assert rows[0].numpy().tolist() == [[1], [1], [0]]
    assert rows[1].to_list()[0][:2] == [3, 3]
    assert {rows[1].to_list()[0][2], rows[1].to_list()[2][0]} == {1, 2}
    inputs = [
        tf.keras.Input((1,), dtype="int64", name="c"),
        tf.keras.Input((None,), dtype="int64", ragged=True, name="bag_ids"),
    ]
    x = layers.FieldEmbedding(layer.num_rows, 4, num_bags=1)(layer(inputs))
    model = tf.keras.Model(inputs, tf.keras.layers.Flatten()(x))
    export.to_scorer(model, tmp_path / "s")
    flat = {"c": matrix.numpy(), "bag_ids": bag.values.numpy(), "bag_row_splits": bag.row_splits}
    got = core.Scorer.load(tmp_path / "s").predict({k: np.asarray(v) for k, v in flat.items()})
    np.testing.assert_allclose(got, model([matrix, bag]), atol=1e-6)


def test_the_map_is_fixed():
    layer = learned()
    before = layer(IDS).numpy()
    counts = layer.new_counts()
    layer.count(counts, np.full((50, 2), 1234))
    layer.extend_from_counts(counts)
    np.testing.assert_array_equal(layer(IDS), before)
    with pytest.raises(ValueError, match="is not adapted to data: call learn"):
        layer.adapt([IDS])


def test_what_does_not_belong_together_is_refused():
    counts, categories, embedding = teacher()
    layer = research.LearnedHash(2)
    with pytest.raises(ValueError, match="has no map: call learn"):
        layer(IDS)
    with pytest.raises(ValueError, match=r"must be of 2 fields, got \(2, 2, 1\)"):
        layer.learn(counts, categories, embedding, PLANS[:1])
    with pytest.raises(ValueError, match="at least one hashed row"):
        layer.learn(counts, categories, embedding, [research.HashPlan(0, 1, 1, 1)] * 2)
    mixed = layers.FieldEmbedding(categories.num_rows, [2, 3])
    with pytest.raises(ValueError, match="vectors of one width"):
        layer.learn(counts, categories, mixed, PLANS)
    assert not layer.adapted


def test_a_file_gives_the_same_hash_for_the_same_fields_only(tmp_path):
    path = tmp_path / "hash.npz"
    research.save_hash(learned(), ["a", "b"], path)
    np.testing.assert_array_equal(research.load_hash(path, ["a", "b"])(IDS), learned()(IDS))
    assert [p.name for p in tmp_path.iterdir()] == ["hash.npz"]
    with pytest.raises(ValueError, match="is a hash of the fields a, b with 0 bags, expected a, c"):
        research.load_hash(path, ["a", "c"])
    with pytest.raises(ValueError, match="with 0 bags, expected a, b with 1"):
        research.load_hash(path, ["a", "b"], 1)
    with pytest.raises(ValueError, match="fields must be 2 names, got 1"):
        research.save_hash(learned(), ["a"], path)
    with pytest.raises(FileNotFoundError):
        research.load_hash(tmp_path / "none", ["a"])


@pytest.mark.one_tf
def test_damaged_files_are_refused_or_read(tmp_path):
    path = tmp_path / "hash.npz"
    research.save_hash(learned(), ["a", "b"], path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(data)
        for at in rng.integers(len(data), size=3):
            damaged[at] ^= 1 << rng.integers(8)
        path.write_bytes(damaged[: rng.integers(1, len(data) + 1)])
        try:
            research.load_hash(path, ["a", "b"])(IDS)
        except ValueError as e:
            assert "hash.npz: is" in str(e)  # noqa: PT017  (some changes do no harm)
