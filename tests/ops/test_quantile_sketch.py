import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, ops

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 5, 20_000) << 40
VALUES = np.where(RNG.random(20_000) < 0.05, np.nan, RNG.normal(size=20_000)).astype("f")
WEIGHTS = RNG.exponential(size=20_000).astype("f")
SAME = {"epsilon": 0.05, "exact_values": 9}


def assert_same(state, sketch):
    for name, array in sketch.state().items():
        np.testing.assert_array_equal(getattr(state, name), array, err_msg=name)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_function", [False, True])
def test_updates_are_those_of_the_core(weighted, in_function):
    state = ops.empty_sketch(**SAME, weighted=weighted)
    expected = core.QuantileSketch(**SAME, weighted=weighted)
    update = tf.function(ops.sketch_update) if in_function else ops.sketch_update
    for part in np.array_split(np.arange(len(IDS)), 3):
        weights = WEIGHTS[part] if weighted else None
        state = update(state, IDS[part], VALUES[part], weights)
        expected.update(IDS[part], VALUES[part], weights)
    assert_same(state, expected)
    got = ops.sketch_quantiles(state, [1 << 40, 7], [0, 0.5, 1])
    np.testing.assert_array_equal(got, expected.quantiles([1 << 40, 7], [0.0, 0.5, 1.0]))


def test_a_merge_is_that_of_the_core():
    a, b = core.QuantileSketch(**SAME), core.QuantileSketch(**SAME)
    a.update(IDS[::2], VALUES[::2])
    b.update(IDS[1::2], VALUES[1::2])
    states = [ops.SketchState(**s.state()) for s in (a, b)]
    a.merge(b)
    assert_same(ops.sketch_merge(*states), a)


def test_an_empty_batch_changes_nothing():
    for weighted in (False, True):
        empty = ops.empty_sketch(**SAME, weighted=weighted)
        none = np.zeros(0, np.int64), np.zeros(0, np.float32)
        state = ops.sketch_update(empty, *none, none[1] if weighted else None)
        for a, b in zip(state, empty, strict=True):
            np.testing.assert_array_equal(a, b)


def adapted_sketch():
    sketch = ops.QuantileSketch(**SAME)
    sketch.update(IDS, VALUES)
    return sketch


def test_a_checkpoint_keeps_the_sketch(tmp_path):
    sketch, other = adapted_sketch(), ops.QuantileSketch()
    path = tf.train.Checkpoint(sketch=sketch).save(str(tmp_path / "c"))
    tf.train.Checkpoint(sketch=other).restore(path).assert_consumed()
    assert_same(other.state, sketch.to_core())


def test_a_saved_model_keeps_the_sketch(tmp_path):
    module = tf.Module()
    module.sketch = adapted_sketch()
    module.median = tf.function(
        lambda ids: module.sketch.quantiles(ids, [0.5]),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    features = np.arange(5) << 40
    np.testing.assert_array_equal(loaded.median(features), module.median(features))


def test_a_function_may_update_the_variables():
    sketch, expected = ops.QuantileSketch(**SAME), core.QuantileSketch(**SAME)

    @tf.function
    def step(ids, values):
        sketch.update(ids, values)

    for part in np.array_split(np.arange(len(IDS)), 4):
        step(tf.constant(IDS[part]), tf.constant(VALUES[part]))
        expected.update(IDS[part], VALUES[part])
    assert_same(sketch.state, expected)


def test_denormal_values_are_distinct():
    values = np.array([0, 1e-40, 2e-40, 1e-40], "f")
    state = ops.sketch_update(ops.empty_sketch(), np.zeros(4, np.int64), values)
    np.testing.assert_array_equal(ops.sketch_quantiles(state, [0], [0, 0.5, 1])[0], values[:3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: ops.sketch_update(s, [0], [1.0, 2.0]), "values must have 1 items"),
        (lambda s: ops.sketch_update(s, [0], [1.0], [1.0]), "weights must not be given"),
        (lambda s: ops.sketch_update(s, [[0]], [[1.0]]), "ids must have rank 1"),
        (lambda s: ops.sketch_merge(s, ops.empty_sketch(0.2)), "other must have the epsilon"),
        (lambda s: ops.sketch_quantiles(s, [0], [2.0]), r"probabilities\[0\] = 2 is out of range"),
        (lambda s: ops.sketch_quantiles(s._replace(config=[1.0]), [0], [0.5]), "config must have"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(ops.empty_sketch())
