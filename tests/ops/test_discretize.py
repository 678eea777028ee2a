import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core, ops

BITS = 10
POLICIES = list(
    itertools.product(["left", "right"], ["bucket", "drop"], ["pass", "drop"], [False, True])
)


def hashed(feature, b):
    """Bucket b of `feature` by the op's hash, which test_hash.py tests."""
    return int(core.hash_ids(np.array([b]), BITS, int(feature))[0])


def reference(batch, buckets, side, missing, unknown, hashing):
    """The op for one entry at a time, with numpy.searchsorted."""
    ids, values, row_splits = batch
    feature_ids, boundaries, splits = buckets
    offsets, end = {}, 0
    for f, feature in enumerate(feature_ids):
        offsets[int(feature)] = (end, boundaries[splits[f] : splits[f + 1]])
        end += splits[f + 1] - splits[f] + (2 if missing == "bucket" else 1)
    out_ids, out_values, out_splits = [], [], [0]
    for b in range(len(row_splits) - 1):
        for k in range(row_splits[b], row_splits[b + 1]):
            feature, value = int(ids[k]), 1.0 if values is None else values[k]
            known = feature in offsets
            if (np.isnan(value) and missing == "drop") or (not known and unknown == "drop"):
                continue
            if not known:
                out_ids.append(hashed(feature, -2) + (0 if hashing else end))
                out_values.append(value)
                continue
            offset, own = offsets[feature]
            if np.isnan(value):
                bucket = -1 if hashing else len(own) + 1
            else:
                bucket = int(np.searchsorted(own, np.float32(value), side))
            out_ids.append(hashed(feature, bucket) if hashing else offset + bucket)
            out_values.append(1.0)
        out_splits.append(len(out_ids))
    return (
        np.array(out_ids, np.int64),
        None if values is None else np.array(out_values, np.float32),
        np.array(out_splits),
    )


def make_batch(size, features, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.choice(features, size)
    values = rng.choice(
        np.array([np.nan, np.inf, -np.inf, -0.0, 0, 1, 2, 2.5, 3, -1e30, 1e-40], np.float32), size
    )
    cuts = np.sort(rng.integers(0, size + 1, 5))
    return ids, values, np.concatenate([[0], cuts, [size]])


# feature -7: no boundary; 0: repeated ones; 5: infinite ones; 9: 17 of them
BUCKETS = (
    np.array([-7, 0, 5, 9]),
    np.array([1, 2, 2, 2, 3, -np.inf, 0, np.inf, *np.arange(17) / 4], np.float32),
    np.array([0, 0, 5, 8, 25]),
)
FEATURES = np.array([-7, 0, 5, 9, 1, -(1 << 63), (1 << 63) - 1])


def spread(buckets):
    """The same buckets with feature ids so far apart that they are looked up by hash."""
    return np.array([-(1 << 62), 0, 1 << 40, (1 << 63) - 1]), *buckets[1:]


def run(face, batch, buckets, side, missing, unknown, hashing, **kwargs):
    kwargs = {**kwargs, "side": side, "missing": missing, "unknown": unknown}
    if hashing:
        return face.hashing_discretize(*batch, *buckets, output_bits=BITS, **kwargs)
    return face.percentile_discretize(*batch, *buckets, pass_through_bits=BITS, **kwargs)


def assert_equal(got, expected):
    for g, e in zip(got, expected, strict=True):
        if e is None:
            assert g is None
        else:
            np.testing.assert_array_equal(g, e)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 300])
@pytest.mark.parametrize("policy", POLICIES)
def test_equals_searchsorted(size, policy):
    batch = make_batch(size, FEATURES)
    assert_equal(run(ops, batch, BUCKETS, *policy), reference(batch, BUCKETS, *policy))
    assert_equal(run(core, batch, BUCKETS, *policy), reference(batch, BUCKETS, *policy))


@pytest.mark.parametrize("policy", POLICIES)
def test_sparse_feature_ids_are_found(policy):
    buckets = spread(BUCKETS)
    batch = make_batch(300, np.array([*buckets[0], 7, -1]))
    assert_equal(run(ops, batch, buckets, *policy), reference(batch, buckets, *policy))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_binary_batch_stays_binary(policy):
    ids, _, row_splits = make_batch(40, FEATURES)
    batch = (ids, None, row_splits)
    assert_equal(run(ops, batch, BUCKETS, *policy), reference(batch, BUCKETS, *policy))
    assert_equal(run(core, batch, BUCKETS, *policy), reference(batch, BUCKETS, *policy))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False), max_size=40),
    st.lists(st.floats(width=32), max_size=20),
    st.sampled_from(["left", "right"]),
)
def test_any_float_gets_the_bucket_of_searchsorted(boundaries, values, side):
    boundaries = np.sort(np.array(boundaries, np.float32))
    values = np.tile(np.array(values, np.float32), 8)  # more than are searched at once
    batch = (np.zeros(len(values), np.int64), values, np.array([0, len(values)]))
    buckets = (np.array([0]), boundaries, np.array([0, len(boundaries)]))
    ids, _, _ = ops.percentile_discretize(*batch, *buckets, side=side)
    expected = np.searchsorted(boundaries, values, side)
    expected[np.isnan(values)] = len(boundaries) + 1
    np.testing.assert_array_equal(ids, expected)


HOSTILE = [0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, np.inf, -np.inf, 16777216.0, 1.0]
floats = st.one_of(st.sampled_from(HOSTILE), st.floats(width=32, allow_nan=False))


@settings(max_examples=60, deadline=None)
@given(
    boundaries=st.lists(st.lists(floats, max_size=70), min_size=1, max_size=6),
    values=st.lists(st.floats(width=32), max_size=20),
    side=st.sampled_from(["left", "right"]),
    spread_out=st.booleans(),
)
def test_every_feature_has_the_buckets_of_searchsorted(boundaries, values, side, spread_out):
    cuts = [np.sort(np.array(b, np.float32)) for b in boundaries]
    # On each boundary and right beside it, of whichever feature it is
    at = np.unique(np.concatenate([np.array([0], "f"), *cuts]))
    beside = [np.nextafter(at, np.float32(to)) for to in (-np.inf, np.inf)]
    values = np.concatenate([np.array([*values, np.nan], "f"), at, *beside])
    features = np.arange(len(cuts)) * ((1 << 60) - 1 if spread_out else 1)
    splits = np.cumsum([0, *(len(c) for c in cuts)])
    ids = np.repeat(features, len(values))
    batch = (ids, np.tile(values, len(cuts)), np.array([0, len(ids)]))
    buckets = (features, np.concatenate(cuts), splits)
    expected = []
    for f, c in enumerate(cuts):
        bucket = np.searchsorted(c, values, side)
        bucket[np.isnan(values)] = len(c) + 1
        expected.append(splits[f] + 2 * f + bucket)
    for face in (ops, core):
        got, _, _ = face.percentile_discretize(*batch, *buckets, side=side, pass_through_bits=3)
        np.testing.assert_array_equal(got, np.concatenate(expected))


@pytest.mark.parametrize("num_features", [0, 1, 2, 5000])
@pytest.mark.parametrize("step", [1, 3, 1000003])
def test_every_feature_is_found_and_no_other(num_features, step):
    features = np.arange(num_features) * step - 10
    buckets = (features, np.zeros(num_features, np.float32), np.arange(num_features + 1))
    ids = np.concatenate([features, features + 1, [0, 1 << 62]])
    batch = (ids, np.ones(len(ids), np.float32), np.array([0, len(ids)]))
    got, _, _ = ops.percentile_discretize(*batch, *buckets, missing="drop", pass_through_bits=3)
    f = np.searchsorted(features, ids)
    known = np.isin(ids, features)
    expected = np.where(known, 2 * f + 1, 2 * num_features + core.hash_ids(np.array([-2]), 3, 0))
    np.testing.assert_array_equal(got.numpy()[known], expected[known])
    assert np.all(got.numpy()[~known] >= 2 * num_features)
    assert np.all(got.numpy()[~known] < 2 * num_features + 8)


@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_bit_identical_for_any_number_of_threads(policy):
    batch = make_batch(200_000, FEATURES)
    one = run(core, batch, BUCKETS, *policy, num_threads=1)
    for threads in (2, 7):
        assert_equal(run(core, batch, BUCKETS, *policy, num_threads=threads), one)


def test_integers_never_pass_through_float():
    ids = np.array([(1 << 24) + 1, (1 << 53) + 1, (1 << 62) + 1])
    buckets = (ids, np.zeros(3, np.float32), np.arange(4))
    batch = (ids, np.zeros(3, np.float32), np.array([0, 3]))
    np.testing.assert_array_equal(ops.percentile_discretize(*batch, *buckets)[0], [0, 3, 6])
    batch = (ids - 1, np.zeros(3, np.float32), np.array([0, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[0\] = 16777216 is not one"):
        ops.percentile_discretize(*batch, *buckets, unknown="error")


def test_int32_and_int64_ids_give_equal_results():
    ids, values, splits = make_batch(50, FEATURES[:5])
    wide = ops.percentile_discretize(ids, values, splits, *BUCKETS)
    narrow = ops.percentile_discretize(tf.constant(ids, tf.int32), values, splits, *BUCKETS)
    assert_equal(narrow, wide)


def test_a_hashed_bucket_does_not_depend_on_other_features():
    batch = (np.full(5, 9), np.array([0, 1, 2, 3, np.nan], np.float32), np.array([0, 5]))
    alone = (np.array([9]), BUCKETS[1][8:], np.array([0, 17]))
    assert_equal(
        ops.hashing_discretize(*batch, *alone, output_bits=40),
        ops.hashing_discretize(*batch, *BUCKETS, output_bits=40),
    )


def test_the_first_unknown_feature_is_named_whatever_the_threads():
    ids = np.zeros(400_000, np.int64)
    ids[[150_000, 399_999]] = [77, 78]
    batch = (ids, np.zeros(len(ids), np.float32), np.array([0, len(ids)]))
    for threads in (1, 2, 8):
        with pytest.raises(ValueError, match=r"ids\[150000\] = 77 is not one of the 4 adapted"):
            run(core, batch, BUCKETS, "left", "drop", "error", False, num_threads=threads)


BATCH = (np.array([0]), np.array([1.0], np.float32), np.array([0, 1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({0: [0, 1]}, "values must have 2 items, one for each id, got 1"),
        ({0: [[0]]}, "ids must have"),
        ({2: [0, 2]}, r"row_splits\[1\] must be the number of entries 1, got 2"),
        ({2: [0, 2, 1]}, "row_splits must be non-decreasing"),
        ({2: [1, 1]}, r"row_splits\[0\] must be 0"),
        ({2: np.zeros(0, np.int64)}, "row_splits must not be empty"),
        (
            {3: [0, 0, 5, 9]},
            r"feature_ids must be strictly increasing: feature_ids\[1\] = 0 after 0",
        ),
        ({3: [0]}, "boundary_splits must have 2 items, one more than feature_ids, got 5"),
        ({5: np.zeros(0, np.int64)}, "boundary_splits must have 5 items"),
        ({5: [1, 1, 5, 8, 25]}, r"boundary_splits\[0\] must be 0, got 1"),
        (
            {5: [0, 0, 5, 8, 24]},
            r"boundary_splits\[4\] must be the number of boundaries 25, got 24",
        ),
        (
            {5: [0, 30, 5, 8, 25]},
            r"boundary_splits must be non-decreasing: boundary_splits\[2\] = 5 after 30",
        ),
        (
            {5: [0, -1, 5, 8, 25]},
            r"boundary_splits must be non-decreasing: boundary_splits\[1\] = -1",
        ),
        ({4: np.where(np.arange(25) == 3, np.nan, BUCKETS[1])}, r"boundaries\[3\] must not be nan"),
        (
            {4: np.where(np.arange(25) == 3, 0, BUCKETS[1])},
            r"boundaries of one feature must be non-decreasing: boundaries\[3\] = 0 after 2",
        ),
    ],
)
@pytest.mark.parametrize("hashing", [False, True])
def test_bad_input_is_refused(arguments, message, hashing):
    inputs = [arguments.get(i, a) for i, a in enumerate((*BATCH, *BUCKETS))]
    policy = ("left", "bucket", "pass", hashing)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        run(ops, inputs[:3], inputs[3:], *policy)
    with pytest.raises(ValueError, match=message):
        run(core, inputs[:3], inputs[3:], *policy)


@pytest.mark.parametrize("bits", [0, -1, 63])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"pass_through_bits must be in \[1, 62\]"
    ):
        ops.percentile_discretize(*BATCH, *BUCKETS, pass_through_bits=bits)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"output_bits must be in \[1, 62\]"):
        ops.hashing_discretize(*BATCH, *BUCKETS, output_bits=bits)


def test_choices_out_of_range_are_refused():
    with pytest.raises(ValueError, match="side must be one of 'left', 'right', got 'up'"):
        core.hashing_discretize(*BATCH, *BUCKETS, output_bits=4, side="up")
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="up"):
        ops.hashing_discretize(*BATCH, *BUCKETS, output_bits=4, side="up")


def test_new_boundaries_take_effect_immediately():
    """The op caches the index of the last boundaries."""
    boundaries = tf.Variable([1.0, 2.0])
    splits = tf.Variable(np.array([0, 2]), shape=[None])
    features = tf.Variable(np.array([0]), shape=[None])

    @tf.function
    def bucket(value):
        batch = ([0], [value], [0, 1])
        return ops.percentile_discretize(*batch, features, boundaries, splits, missing="drop")[0]

    assert bucket(tf.constant(1.5)) == 1
    assert bucket(tf.constant(1.5)) == 1
    boundaries.assign([1.0, 1.2])
    assert bucket(tf.constant(1.5)) == 2
    boundaries.assign_add([1.0, 1.0])
    assert bucket(tf.constant(1.5)) == 0
    features.assign([-3, 0])
    splits.assign([0, 1, 2])
    assert bucket(tf.constant(1.5)) == 2


def aligned(values, dtype):
    """An array that TensorFlow uses without a copy."""
    values = np.asarray(values, dtype)
    raw = np.empty(values.nbytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    view = raw[begin : begin + values.nbytes].view(dtype)
    view[:] = values
    return view


@pytest.mark.parametrize("changed", ["features", "boundaries", "splits"])
def test_an_in_place_change_of_a_fed_array_takes_effect_immediately(changed):
    features, splits = aligned([0, 1], np.int64), aligned([0, 1, 3], np.int64)
    boundaries = aligned([1.0, 2.0, 3.0], np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = [tf.compat.v1.placeholder(a.dtype, [None]) for a in (features, boundaries, splits)]
        bucket = ops.percentile_discretize([1], [0.5], [0, 1], *fed, missing="drop")[0]
        feed = dict(zip(fed, (features, boundaries, splits), strict=True))
        for _ in range(2):
            assert session.run(bucket, feed) == 2
        if changed == "features":
            features[:] = [1, 2]
            assert session.run(bucket, feed) == 0
        elif changed == "boundaries":
            boundaries[:] = [0.1, 0.2, 0.3]
            assert session.run(bucket, feed) == 4
        else:
            splits[:] = [0, 2, 3]
            assert session.run(bucket, feed) == 3


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_an_assignment_to_a_version_1_variable_takes_effect_immediately(resource):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        boundaries = tf.compat.v1.Variable([1.0, 2.0], use_resource=resource)
        bucket = ops.percentile_discretize(
            [0], [1.5], [0, 1], [0], boundaries, [0, 2], missing="drop"
        )[0]
        assign = boundaries.assign([3.0, 4.0])
        session.run(boundaries.initializer)
        for _ in range(2):
            assert session.run(bucket) == 1
        session.run(assign)
        assert session.run(bucket) == 0


@pytest.mark.parametrize("op", ["percentile", "hashing"])
def test_an_output_in_use_does_not_change(op):
    """The op reuses the memory of its outputs."""
    bits = {"output_bits": 8} if op == "hashing" else {}
    discretize = getattr(ops, f"{op}_discretize")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def run(values):
        ids = tf.range(tf.size(values), dtype=tf.int64) % 2
        splits = tf.stack([0, tf.size(values, tf.int64)])
        return discretize(ids, values, splits, [0], [-1.0, 0.0, 1.0], [0, 3], **bits)

    rng = np.random.default_rng(0)
    calls = [rng.normal(size=n).astype("f") for n in (1000, 1000, 900, 0, 2000, 10)]
    held = [run(values) for values in calls]
    for values, outputs in zip(calls, held, strict=True):
        for a, b in zip(outputs, run(values), strict=True):
            np.testing.assert_array_equal(a, b)
    part = run(calls[0])[1][5:]
    before = part.numpy()
    run(-calls[0])
    np.testing.assert_array_equal(part, before)


def test_values_have_no_gradient():
    v = tf.constant([1.5])
    with tf.GradientTape() as tape:
        tape.watch(v)
        _, y, _ = ops.percentile_discretize([0], v, [0, 1], *BUCKETS)
    assert tape.gradient(y, v) is None


def test_runs_in_a_function_of_unknown_shapes_and_in_tf_data():
    batch = make_batch(60, FEATURES)
    expected = reference(batch, BUCKETS, "left", "drop", "pass", False)

    def discretize(ids, values, splits):
        return ops.percentile_discretize(
            ids, values, splits, *BUCKETS, missing="drop", pass_through_bits=BITS
        )

    signature = [tf.TensorSpec([None], t) for t in (tf.int64, tf.float32, tf.int64)]
    assert_equal(tf.function(discretize, input_signature=signature)(*batch), expected)
    dataset = tf.data.Dataset.from_tensors(batch).map(discretize)
    assert_equal(next(iter(dataset)), expected)
