"""Target and count statistics of categories."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core, ops
from twml_ops._category_hash import category_keys
from twml_ops.layers import CategoryCounts, CountStatistics, TargetStatistics
from twml_ops.layers._category_counts import fold_of

BOTH = [CountStatistics, TargetStatistics]
both = pytest.mark.parametrize("kind", BOTH)
CROSSES = [(0, 2), (2, 1, 0)]
INT64 = st.integers(-(2**63), 2**63 - 1)


def examples(n=400, seed=0, weighted=False):
    """ids [n, 3], row keys, labels and weights; some categories are rare."""
    rng = np.random.default_rng(seed)
    ids = rng.zipf(1.5, (n, 3)) % 50 * 10**16 - 2**62
    labels = (rng.random(n) < np.where(ids[:, 0] % 7 < 3, 0.8, 0.2)).astype(np.float32)
    weights = rng.integers(0, 4, n).astype(np.float32) if weighted else np.ones(n, np.float32)
    return ids, np.arange(n) * 3, labels, weights


def adapted(kind, n=400, seed=0, **options):
    layer = kind(3, **options)
    ids, rows, labels, _ = examples(n, seed)
    layer.adapt(
        [((ids[i : i + 64], rows[i : i + 64]), labels[i : i + 64]) for i in range(0, n, 64)]
    )
    return layer


def folds_of(layer, rows):
    return fold_of(rows, layer.num_folds, layer.time_boundaries, core.hash_ids, np.searchsorted)


def reference(kind, probe, seen, training, *, crosses=(), layer=None, without=None):
    """Both statistics by loops over rows in float64."""
    ids, rows, labels, weights = seen
    keys = [*((f,) for f in range(3)), *map(tuple, crosses)]
    folds, probe_folds = folds_of(layer, rows), folds_of(layer, probe[1])
    result, prior_weight = np.zeros((len(probe[0]), len(keys))), 20.0
    for b, row in enumerate(probe[0]):
        used = np.ones(len(ids), bool)
        if training:
            before = layer.time_boundaries is not None
            used = folds < probe_folds[b] if before else folds != probe_folds[b]
        used &= folds != (-1 if without is None else without)
        seen_weight, total = weights[used].sum(), weights.sum()
        scale = total / seen_weight if seen_weight else 0.0
        guess = 0.5
        if training and layer.time_boundaries is not None:  # never the label of its own block
            others = folds != probe_folds[b]
            guess = ((weights * labels)[others].sum() + 0.5) / (weights[others].sum() + 1)
        prior = ((weights * labels)[used].sum() + guess) / (seen_weight + 1)
        for c, fields in enumerate(keys):
            same = used & (ids[:, fields] == row[list(fields)]).all(axis=1)
            n = scale * weights[same].sum()
            s = scale * (weights * labels)[same].sum()
            if kind is CountStatistics:
                result[b, c] = np.log1p(n)
            else:
                mean = (s + prior_weight * prior) / (n + prior_weight)
                result[b, c] = np.log(mean / (1 - mean))
    return result


@both
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("time_boundaries", [None, [300, 900]])
def test_equals_a_loop_over_rows(kind, weighted, training, time_boundaries):
    layer = kind(3, crosses=CROSSES, time_boundaries=time_boundaries)
    seen = examples(weighted=weighted)
    layer.adapt([((seen[0], seen[1]), *seen[2:])])
    probe = [np.concatenate([a[:40], b[:10]]) for a, b in zip(seen, examples(seed=1), strict=True)]
    got = layer((probe[0], probe[1]), training=training)
    want = reference(kind, probe, seen, training, crosses=CROSSES, layer=layer)
    assert got.shape == (50, layer.output_dim) == (50, 5)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@both
def test_a_further_fold_can_be_left_out(kind):
    layer, seen = kind(3, crosses=CROSSES), examples(weighted=True)
    layer.adapt([((seen[0], seen[1]), *seen[2:])])
    probe = [column[:40] for column in seen]
    for fold in (0, 4):
        got = layer((probe[0], probe[1]), training=True, without=fold)
        want = reference(kind, probe, seen, True, crosses=CROSSES, layer=layer, without=fold)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
        again = layer.of_found(layer.find(probe[0]), probe[1], fold)
        np.testing.assert_array_equal(again, got)
        own = folds_of(layer, probe[1]) == fold
        plain = layer((probe[0], probe[1]), training=True).numpy()
        np.testing.assert_array_equal(got.numpy()[own], plain[own])
        assert (got.numpy()[~own] != plain[~own]).any()


@pytest.mark.parametrize("time_boundaries", [None, [50, 120]])
def test_the_label_of_a_row_does_not_change_its_statistic_in_training(time_boundaries):
    ids, rows, labels, _ = examples(60)
    layer, other = (TargetStatistics(3, time_boundaries=time_boundaries) for _ in range(2))
    layer.adapt([((ids, rows), labels)])
    for row in range(0, 60, 7):
        flipped = labels.copy()
        flipped[row] = 1 - labels[row]
        other.adapt([((ids, rows), flipped)])
        probe = (ids[row : row + 1], rows[row : row + 1])
        np.testing.assert_array_equal(layer(probe, training=True), other(probe, training=True))
        assert np.any(layer(probe) != other(probe))


@both
def test_the_division_of_rows_among_processes_cannot_be_seen(kind):
    ids, rows, labels, weights = examples(weighted=True)
    whole, parts = kind(3, crosses=CROSSES), kind(3, crosses=CROSSES)
    whole.adapt([((ids, rows), labels, weights)])
    order = np.random.default_rng(3).permutation(len(ids))
    counts = []
    for part in np.array_split(order, 3):
        counts.append(parts.new_counts())
        counts[-1].update(ids[part], rows[part], labels[part], weights[part])
    received = parts.new_counts()
    received.merge_state(counts[2].state())
    parts.adapt_from_counts(counts[0], counts[1], received)
    for a, b in zip(whole.state_variables, parts.state_variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_counts_are_the_same_however_often_they_are_compacted(monkeypatch):
    whole = adapted(TargetStatistics)
    monkeypatch.setattr("twml_ops.layers._category_counts._COMPACT_ENTRIES", 1)
    for a, b in zip(whole.state_variables, adapted(TargetStatistics).state_variables, strict=True):
        np.testing.assert_array_equal(a, b)


@both
def test_out_of_fold_counts_have_the_size_of_inference(kind):
    """A category that every row has: its statistic is the same in training and in inference."""
    ids, rows = np.zeros((1000, 3), np.int64), np.arange(1000)
    layer = kind(3)
    layer.adapt([((ids, rows), np.tile([0.0, 1.0], 500))])
    training, inference = (layer((ids, rows), training=t).numpy() for t in (True, False))
    np.testing.assert_allclose(training, inference, atol=0.2 if kind is TargetStatistics else 1e-4)


@both
def test_unseen_categories_have_the_prior(kind):
    layer = adapted(kind)
    _, _, labels, _ = examples()
    p = (labels.sum() + 0.5) / (len(labels) + 1)
    got = layer(np.full((2, 3), 5))
    want = 0 if kind is CountStatistics else np.log(p / (1 - p))
    np.testing.assert_allclose(got, np.full((2, 3), want), rtol=1e-5)


@given(
    rows=st.lists(st.tuples(INT64, INT64, INT64), min_size=1, max_size=20),
    keys=st.lists(INT64, min_size=20, max_size=20),
)
@settings(max_examples=30, deadline=None)
def test_numpy_and_tensorflow_compute_the_same_keys_and_folds(rows, keys):
    ids, keys = np.array(rows, np.int64), np.array(keys, np.int64)
    for boundaries in (None, [-5, 0, 7]):
        numpy = fold_of(keys, 4, boundaries, core.hash_ids, np.searchsorted)
        graph = fold_of(tf.constant(keys), 4, boundaries, ops.hash_ids, tf.searchsorted)
        np.testing.assert_array_equal(numpy, graph)
    numpy = category_keys(ids, CROSSES, core.hash_ids, np.take, np.concatenate)
    graph = category_keys(tf.constant(ids), CROSSES, ops.hash_ids, tf.gather, tf.concat)
    np.testing.assert_array_equal(numpy, graph)


def test_the_key_of_a_cross_depends_on_its_fields_alone():
    """Crosses of one size are computed together, in whatever order the sizes are given."""
    ids = examples(50)[0]
    crosses = [(2, 1, 0), (0, 2), (0, 1, 2), (2, 1)]
    functions = core.hash_ids, np.take, np.concatenate
    together = category_keys(ids, crosses, *functions)
    alone = [category_keys(ids, [cross], *functions)[:, 3:] for cross in crosses]
    fields = category_keys(ids, [], *functions)
    np.testing.assert_array_equal(together, np.concatenate([fields, *alone], axis=1))


def test_the_same_id_in_two_fields_is_two_categories():
    layer = CountStatistics(3, crosses=[(0, 1), (0, 2)])
    layer.adapt([((np.array([[1, 2, 3]]), np.array([0])), np.array([1.0]))])
    got = layer(np.array([[1, 1, 1], [2, 2, 2], [1, 2, 3]])) > 0
    np.testing.assert_array_equal(got, [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]])


@both
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_graph_and_eager_agree_and_shapes_may_be_unknown(kind, dtype):
    layer = adapted(kind, crosses=CROSSES)
    ids, rows, _, _ = examples(20, seed=2)
    ids = (ids % 1000).astype(dtype)
    spec = [tf.TensorSpec([None, 3], dtype), tf.TensorSpec([None], tf.int64)]
    for training in (False, True):
        traced = tf.function(lambda i, r, t=training: layer((i, r), training=t), spec)
        np.testing.assert_array_equal(
            traced(ids, rows.astype(np.int64)), layer((ids, rows), training=training)
        )
    assert layer(np.zeros((0, 3), dtype)).shape == (0, 5)


@both
def test_an_unsigned_id_is_its_own_category_or_an_error(kind):
    layer = adapted(kind)
    ids = np.abs(examples(4)[0])
    np.testing.assert_array_equal(layer(ids.astype(np.uint64)), layer(ids))
    with pytest.raises(tf.errors.InvalidArgumentError, match="uint64 must be below 2"):
        layer(ids.astype(np.uint64) + np.uint64(1 << 63))


@both
def test_training_may_be_a_tensor(kind):
    layer = adapted(kind)
    ids, rows, _, _ = examples(20)
    traced = tf.function(lambda t: layer((tf.constant(ids), tf.constant(rows)), training=t))
    for training in (False, True):
        want = layer((ids, rows), training=training)
        np.testing.assert_array_equal(traced(tf.constant(training)), want)


def model_with(layer):
    inputs = [
        tf.keras.Input((3,), dtype="int64", name="ids"),
        tf.keras.Input((), dtype="int64", name="row_keys"),
    ]
    y = tf.keras.layers.Dense(1, "sigmoid")(layer((inputs[0], inputs[1])))
    return tf.keras.Model(inputs, y)


@both
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_model_trains_and_comes_back_from_a_file_and_as_a_clone(kind, eagerly, tmp_path):
    model = model_with(adapted(kind, crosses=CROSSES))
    ids, rows, labels, _ = examples()
    model.compile("sgd", "binary_crossentropy", run_eagerly=eagerly)
    model.fit([ids, rows], labels, batch_size=100, epochs=1, verbose=0)
    want = model.predict([ids, rows], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    # The dense layer after the statistics may differ in the last bit from graph to graph.
    np.testing.assert_allclose(loaded.predict([ids, rows], verbose=0), want, rtol=1e-6)
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone.predict([ids, rows], verbose=0), want, rtol=1e-6)


@both
def test_config_round_trip(kind):
    options = {"crosses": [[0, 1]], "num_folds": 3, "time_boundaries": None, "name": "s"}
    if kind is TargetStatistics:
        options |= {"prior_weight": 3.0, "output": "mean"}
    config = kind(3, **options).get_config()
    assert options.items() <= config.items()
    assert kind.from_config(config).get_config() == config
    assert kind(3, time_boundaries=[1, 5]).num_folds == 3


@both
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_fields": 0}, "num_fields must be a positive integer"),
        ({"crosses": [(0, 3)]}, r"positions of fields in \[0, 3\), got \[0, 3\]"),
        ({"crosses": [(1, 1)]}, "at least two different"),
        ({"num_folds": 1}, "num_folds must be at least 2"),
        ({"time_boundaries": [3, 3]}, "strictly ascending"),
    ],
)
def test_bad_options_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**{"num_fields": 3, **options})


def test_bad_prior_weights_are_refused():
    for bad in (0, -1, np.inf, np.nan):
        with pytest.raises(ValueError, match="prior_weight must be positive"):
            TargetStatistics(3, prior_weight=bad)


@both
def test_bad_calls_are_refused(kind):
    layer = kind(3)
    with pytest.raises(ValueError, match="is not adapted"):
        layer(np.zeros((1, 3), np.int64))
    layer = adapted(kind)
    with pytest.raises(ValueError, match=r"ids must have the shape \[B, 3\], got \(1, 2\)"):
        layer(np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match=r"must be a pair \(ids, row_keys\) in training"):
        layer(np.zeros((1, 3), np.int64), training=True)
    pair = (np.zeros((1, 3), np.int64), np.zeros(1, np.int64))
    for bad in (-1, 5):
        with pytest.raises(ValueError, match=rf"without must be a fold in \[0, 5\), got {bad}"):
            layer(pair, training=True, without=bad)
    with pytest.raises(ValueError, match="without needs training"):
        layer(pair, without=1)
    ordered = adapted(kind, time_boundaries=[9])
    with pytest.raises(ValueError, match="without must be None with time_boundaries"):
        ordered(pair, training=True, without=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": np.zeros((2, 2), np.int64)}, r"ids must be integers of shape \[B, 3\]"),
        ({"ids": np.zeros((2, 3))}, "ids must be integers"),
        ({"ids": np.full((2, 3), 1 << 63, np.uint64)}, r"ids must be below 2\^63, got 92233"),
        ({"row_keys": np.zeros(3, np.int64)}, r"row_keys must be integers of shape \[2\]"),
        ({"row_keys": np.zeros(2)}, "row_keys must be integers"),
        ({"labels": np.zeros(3)}, "labels must have 2 items"),
        ({"labels": np.array([0, 2])}, r"labels\[1\] must be in \[0, 1\], got 2"),
        ({"labels": np.array([0, np.nan])}, r"labels\[1\] must be in \[0, 1\], got nan"),
        ({"weights": np.array([-1, 0])}, r"weights\[0\] must be finite and not negative"),
        ({"weights": np.array([0, np.inf])}, r"weights\[1\] must be finite"),
    ],
)
def test_a_refused_batch_counts_nothing(change, message):
    counts = CountStatistics(3).new_counts()
    batch = {
        "ids": np.zeros((2, 3), np.int64),
        "row_keys": np.zeros(2, np.int64),
        "labels": np.zeros(2),
    }
    with pytest.raises(ValueError, match=message):
        counts.update(**{**batch, **change})
    assert not counts.state()["totals"].any()
    assert not len(counts.state()["keys"])


def test_counts_of_other_options_are_refused():
    layer = CountStatistics(3)
    with pytest.raises(ValueError, match="counts must have the options"):
        layer.adapt_from_counts(CountStatistics(3, num_folds=4).new_counts())
    with pytest.raises(ValueError, match="at least one row"):
        layer.adapt([])
    with pytest.raises(ValueError, match="elements"):
        layer.adapt([(np.zeros((1, 3), np.int64), np.zeros(1))])
    assert not layer.adapted


def test_damaged_states_are_refused():
    counts: CategoryCounts = CountStatistics(3).new_counts()
    counts.update(*examples(5)[:3])
    state = counts.state()
    for change in (
        {"keys": state["keys"][::-1]},
        {"counts": state["counts"][:1]},
        {"totals": state["totals"][:1]},
    ):
        with pytest.raises(ValueError, match="must"):
            CountStatistics(3).new_counts().merge_state({**state, **change})


@pytest.mark.parametrize("output", ["mean", "logit"])
def test_the_first_block_of_time_has_the_mean_label_and_no_other_statistic(output):
    rng = np.random.default_rng(0)
    rows = 4000
    ids, keys = rng.integers(0, 5, [rows, 1]), np.arange(rows)
    labels = (rng.random(rows) < 0.01).astype(np.float32)
    layer = TargetStatistics(1, time_boundaries=[3, rows // 2], output=output)
    layer.adapt([((ids, keys), labels)])
    found = layer((ids, keys), training=True).numpy()
    if output == "logit":
        found = 1 / (1 + np.exp(-found))
    assert np.ptp(found[:3]) == 0
    np.testing.assert_allclose(found[:3], labels.mean(), rtol=0.05)
    assert found[3:].max() < 0.03  # the three rows of the first block do not make .125 of it
