import json

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.conftest import in_form, inputs_of
from twml_ops import core
from twml_ops.layers import HashingDiscretizer, PercentileDiscretizer, SparseLinear

WIDTH = 40
BITS = 5
RNG = np.random.default_rng(0)
# Feature 3 has two values, feature 7 many, feature 20 only NaNs; 30 is never adapted.
ADAPT_IDS = np.tile([3, 7, 20], (200, 1))
ADAPT_VALUES = np.stack(
    [RNG.integers(0, 2, 200), RNG.normal(size=200), np.full(200, np.nan)], axis=1
).astype(np.float32)
IDS = np.array([[3, 7, 20], [30, 7, -1], [-1, -1, -1], [7, 3, 3]])
VALUES = np.array([[1, 0, 5], [2.5, np.nan, 0], [0, 0, 0], [np.inf, 0, -1]], np.float32)
# 2 + 4 + 1 buckets, and one more each for NaN
NUM_BUCKETS = 10


def make(kind, **kwargs):
    if kind == "percentile":
        return PercentileDiscretizer(**{"num_bins": 4, "pass_through_bits": BITS, **kwargs})
    return HashingDiscretizer(**{"output_bits": 20, "num_bins": 4, **kwargs})


def adapted(kind, **kwargs):
    layer = make(kind, **kwargs)
    layer.adapt((ADAPT_IDS, ADAPT_VALUES))
    return layer


def form(name, ids=IDS, values=VALUES):
    return in_form(name, ids, values, WIDTH)


def entry(i, value):
    return int(i), str(float(value))


def rows_of(batch):
    """[(id, value as text: nan == nan), ...] of each row, of any form."""
    if isinstance(batch, tf.SparseTensor):
        rows = [[] for _ in range(batch.shape[0])]
        for (row, i), v in zip(batch.indices.numpy(), batch.values.numpy(), strict=True):
            rows[row].append(entry(i, v))
        return rows
    ids, values = (t.to_list() if isinstance(t, tf.RaggedTensor) else t.numpy() for t in batch)
    return [
        [entry(i, v) for i, v in zip(*row, strict=True) if i != -1]
        for row in zip(ids, values, strict=True)
    ]


def expected_rows(layer, batch_ids=IDS, batch_values=VALUES):
    """The result of the NumPy function for each row, with the boundaries of the layer."""
    state = [v.numpy() for v in layer.state_variables]
    policy = {"side": layer.side, "missing": layer.missing, "unknown": layer.unknown}
    rows = []
    for ids, values in zip(batch_ids, batch_values, strict=True):
        ids, values = ids[ids != -1], values[ids != -1]
        batch = (ids, values, np.array([0, len(ids)]))
        if isinstance(layer, HashingDiscretizer):
            bits = {"output_bits": layer.output_bits}
            out, v, _ = core.hashing_discretize(*batch, *state, **bits, **policy)
        else:
            bits = {"pass_through_bits": layer.pass_through_bits}
            out, v, _ = core.percentile_discretize(*batch, *state, **bits, **policy)
        rows.append([entry(*pair) for pair in zip(out, v, strict=True)])
    return rows


FORMS = ["sparse", "ragged", "padded"]
KINDS = ["percentile", "hashing"]
both_kinds = pytest.mark.parametrize("kind", KINDS)
every_form = pytest.mark.parametrize("name", FORMS)


@both_kinds
@every_form
@pytest.mark.parametrize("missing", ["bucket", "drop"])
@pytest.mark.parametrize("unknown", ["pass", "drop"])
@pytest.mark.parametrize("in_function", [False, True])
def test_every_form_gives_the_same_buckets(kind, name, missing, unknown, in_function):
    layer = adapted(kind, missing=missing, unknown=unknown)
    outputs = (tf.function(layer) if in_function else layer)(form(name))
    tf.nest.assert_same_structure(outputs, form(name), expand_composites=True)
    assert rows_of(outputs) == expected_rows(layer)
    if name == "sparse":
        assert outputs.shape == (4, layer.output_dim)


def test_ids_are_contiguous_and_output_dim_is_the_number_of_buckets():
    layer = adapted("percentile")
    assert layer.output_dim == NUM_BUCKETS + 2**BITS
    values = np.concatenate(
        [ADAPT_VALUES, np.full((1, 3), np.nan, np.float32), np.ones((1, 3), "f")]
    )
    ids, _ = layer((np.tile([3, 7, 20], (202, 1)), values))
    np.testing.assert_array_equal(np.unique(ids), range(NUM_BUCKETS))
    assert adapted("percentile", missing="drop", unknown="drop").output_dim == 7
    assert adapted("percentile", unknown="error").output_dim == NUM_BUCKETS
    assert adapted("hashing").output_dim == 2**20


def test_few_distinct_values_get_a_bucket_each_and_many_equal_shares():
    ids, _ = adapted("percentile")((ADAPT_IDS, ADAPT_VALUES))
    np.testing.assert_array_equal(ids[:, 0], ADAPT_VALUES[:, 0])
    np.testing.assert_array_equal(np.bincount(ids[:, 1] - 3), [50, 50, 50, 50])


def test_bins_may_be_given_by_feature():
    layer = PercentileDiscretizer({7: 10, 3: 5}, missing="drop", pass_through_bits=1)
    layer.adapt((ADAPT_IDS, ADAPT_VALUES))
    assert layer.output_dim == 10 + 2 + 2
    again = PercentileDiscretizer.from_config(layer.get_config())
    assert again.num_bins == {7: 10, 3: 5}


@both_kinds
@every_form
def test_adapting_to_a_dataset_equals_adapting_to_one_batch(kind, name):
    layer, whole = make(kind), make(kind)
    parts = [slice(0, 1), slice(1, 80), slice(80, 80), slice(80, 200)]
    batches = [form(name, ADAPT_IDS[p], ADAPT_VALUES[p]) for p in parts]
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    layer.adapt(dataset)
    whole.adapt(form(name, ADAPT_IDS, ADAPT_VALUES))
    assert rows_of(layer(form("padded"))) == rows_of(whole(form("padded")))


@both_kinds
def test_adapting_again_replaces_the_boundaries(kind):
    layer = adapted(kind)
    layer.adapt((np.array([[30]]), np.array([[1.0]], np.float32)))
    assert rows_of(layer(form("padded"))) == expected_rows(layer)
    assert layer.state_variables[0].numpy().tolist() == [30]


@both_kinds
@every_form
@pytest.mark.parametrize("unknown", ["pass", "drop"])
def test_inputs_may_be_kept_next_to_their_buckets(kind, name, unknown):
    """Values of adapted features appear next to their buckets; passed entries appear once."""
    plain, keeping = (
        adapted(kind, unknown=unknown),
        adapted(kind, unknown=unknown, keep_inputs=True),
    )
    shift = 0 if kind == "hashing" else 3
    assert keeping.output_dim == plain.output_dim + shift
    expected = []
    for ids, values, without in zip(IDS, VALUES, rows_of(plain(form("padded"))), strict=True):
        row, rest = [], iter(without)
        for i, v in zip(ids[ids != -1], values[ids != -1], strict=True):
            if i not in (3, 7, 20):
                row += [(p + shift, x) for p, x in [next(rest)]] if unknown == "pass" else []
                continue
            row.append(next(rest))
            if not np.isnan(v):
                hashed = int(core.hash_ids(np.array([-2]), 20, int(i))[0])
                at = hashed if kind == "hashing" else NUM_BUCKETS + [3, 7, 20].index(i)
                row.append(entry(at, v))
        expected.append(row)
    outputs = keeping(form(name))
    tf.nest.assert_same_structure(outputs, form(name), expand_composites=True)
    assert rows_of(outputs) == expected
    assert type(keeping).from_config(keeping.get_config()).keep_inputs


@both_kinds
def test_a_binary_batch_stays_one(kind):
    layer = adapted(kind)
    got = layer(form("ragged")[0])
    assert isinstance(got, tf.RaggedTensor)
    ones = rows_of(layer((form("ragged")[0], tf.ones_like(form("ragged")[1]))))
    assert [[entry(i, 1) for i in row] for row in got.to_list()] == ones


def test_an_unknown_feature_may_be_an_error():
    layer = adapted("percentile", unknown="error")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[3\] = 30 is not one of the 3"):
        layer(form("ragged"))


@both_kinds
def test_boundaries_may_be_chosen_by_hand(kind):
    layer = adapted(kind)
    assert list(layer.boundaries) == [3, 7, 20]
    chosen = {7: [-np.inf, 0, 0.5, np.inf], -5: [], 3: layer.boundaries[3]}
    layer.set_boundaries(chosen)
    for feature, want in chosen.items():
        np.testing.assert_array_equal(layer.boundaries[feature], np.float32(want))
    values = np.array([[-np.inf, -1, 0, 0.1, 0.5, 1, np.inf, np.nan]], "f")
    ids, _ = layer((tf.fill(values.shape, tf.constant(7, tf.int64)), tf.constant(values)))
    _, bucket = np.unique(ids, return_inverse=True)
    order = np.searchsorted(np.float32(chosen[7]), values[0])
    order[-1] = 5  # of the NaN
    _, want = np.unique(order, return_inverse=True)
    if kind == "percentile":
        np.testing.assert_array_equal(np.ravel(bucket), want)
    assert len(np.unique(bucket)) == len(np.unique(want))
    other = make(kind)
    other.set_boundaries(layer.boundaries)
    np.testing.assert_array_equal(other(form("padded"))[0], layer(form("padded"))[0])


@pytest.mark.parametrize("bad", [[1, 1], [2, 1], [np.nan], [np.inf, np.inf], [1, 1 + 1e-12]])
def test_boundaries_that_do_not_ascend_are_refused(bad):
    layer = adapted("percentile")
    before = layer.boundaries
    with pytest.raises(ValueError, match=r"boundaries\[7\] must be strictly ascending as float32"):
        layer.set_boundaries({3: [0], 7: bad})
    assert layer.boundaries.keys() == before.keys()


@both_kinds
def test_a_layer_that_is_not_adapted_is_refused(kind):
    layer = make(kind)
    assert not layer.adapted
    with pytest.raises(ValueError, match="is not adapted: call adapt"):
        layer(form("padded"))
    with pytest.raises(ValueError, match="is not adapted: call adapt"):
        layer.output_dim  # noqa: B018
    with pytest.raises(ValueError, match="is not adapted: call adapt"):
        make(kind)(inputs_of("sparse", WIDTH))
    unloaded = type(layer).from_config(json.loads(json.dumps(adapted(kind).get_config())))
    with pytest.raises(ValueError, match="is not adapted: call adapt"):
        unloaded(form("padded"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="boundary_splits must have 1 items"):
        tf.function(unloaded)(form("padded"))


@both_kinds
def test_adapting_to_nothing_passes_everything(kind):
    layer = make(kind)
    layer.adapt((np.zeros([0, 3], np.int64), np.zeros([0, 3], np.float32)))
    assert layer.adapted
    assert rows_of(layer(form("ragged"))) == expected_rows(layer)


def model(layer, name):
    inputs = inputs_of(name, WIDTH)
    return tf.keras.Model(inputs, SparseLinear(2, layer.output_dim)(layer(inputs)))


@both_kinds
@every_form
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fits_in_every_form(kind, name, run_eagerly):
    options = {"output_bits": 10} if kind == "hashing" else {}
    layer = adapted(kind, missing="drop", unknown="drop", **options)
    m = model(layer, name)
    m.compile("sgd", "mse", run_eagerly=run_eagerly)
    before = m.get_weights()[-2].copy()
    data = tf.data.Dataset.from_tensors((form(name), tf.ones([4, 2]))).repeat(2)
    m.fit(data, verbose=0)
    assert np.any(m.get_weights()[-2] != before)
    assert m.predict(data, verbose=0).shape == (8, 2)


@both_kinds
@every_form
def test_a_keras_file_keeps_the_model(kind, name, tmp_path):
    options = {"output_bits": 10} if kind == "hashing" else {}
    m = model(adapted(kind, side="right", **options), name)
    m.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(form(name)), m(form(name)))
    assert loaded.layers[-2].output_dim == m.layers[-2].output_dim
    assert loaded.layers[-2].get_config() == m.layers[-2].get_config()


@both_kinds
def test_a_weights_file_keeps_the_buckets(kind, tmp_path):
    options = {"output_bits": 10} if kind == "hashing" else {}
    m = model(adapted(kind, **options), "padded")
    m.save_weights(tmp_path / "w.weights.h5")
    other = tf.keras.models.model_from_json(m.to_json())
    other.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(other(form("padded")), m(form("padded")))


@both_kinds
def test_a_checkpoint_keeps_the_buckets(kind, tmp_path):
    layer, other = adapted(kind), make(kind)
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "c"))
    tf.train.Checkpoint(layer=other).restore(path).assert_consumed()
    assert other.output_dim == layer.output_dim
    assert rows_of(other(form("padded"))) == rows_of(layer(form("padded")))


@both_kinds
@pytest.mark.parametrize("name", ["ragged", "padded"])
def test_a_saved_model_keeps_the_buckets(kind, name, tmp_path):
    options = {"output_bits": 10} if kind == "hashing" else {}
    m = model(adapted(kind, **options), name)
    module = tf.Module()
    module.model = m
    specs = [tf.type_spec_from_value(t) for t in form(name)]
    module.serve = tf.function(lambda ids, values: m([ids, values]), input_signature=specs)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.serve(*form(name)), m(form(name)))


@both_kinds
@every_form
def test_a_saved_function_keeps_the_buckets_it_holds(kind, name, tmp_path):
    """This also serves sparse inputs, whose models Keras 3 cannot trace."""
    layer = adapted(kind)
    specs = tf.nest.map_structure(tf.type_spec_from_value, form(name))
    module = tf.Module()
    module.state = layer.state_variables
    module.serve = tf.function(layer.__call__, input_signature=[specs])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert rows_of(loaded.serve(form(name))) == expected_rows(layer)


@both_kinds
def test_config_makes_an_equal_layer(kind):
    layer = make(kind, num_bins=9, side="right", missing="drop", unknown="error", name="buckets")
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()
    config = adapted(kind).get_config()
    assert type(layer).from_config(config).get_config() == config


@both_kinds
@every_form
def test_runs_in_tf_data(kind, name):
    layer = adapted(kind, missing="drop")
    batches = tf.data.Dataset.from_tensors(form(name))
    mapped = batches.map(layer if name == "sparse" else lambda *pair: layer(pair))
    assert rows_of(next(iter(mapped))) == expected_rows(layer)


@both_kinds
def test_mixed_precision_does_not_change_values(kind):
    layer = make(kind, dtype="mixed_float16")
    value = np.float32(1 + 2**-20)
    layer.adapt((np.array([[0, 0]]), np.array([[1.0, value]], np.float32)))
    ids, _ = layer((tf.constant([[0, 0]], tf.int64), tf.constant([[1.0, value]])))
    assert ids.numpy()[0, 0] != ids.numpy()[0, 1]


@both_kinds
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_bins": 0}, "num_bins must be a positive integer, got 0"),
        ({"num_bins": 2.5}, "num_bins must be a positive integer, got 2.5"),
        ({"num_bins": {4: -1}}, r"num_bins\[4\] must be a positive integer, got -1"),
        ({"side": "middle"}, "side must be one of"),
        ({"missing": "ignore"}, "missing must be one of"),
        ({"unknown": "ignore"}, "unknown must be one of"),
        ({"placement": "gpu"}, 'placement must be "auto", "host" or "device", got .gpu'),
    ],
)
def test_arguments_out_of_range_are_refused(kind, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(kind, **kwargs)


@pytest.mark.parametrize("bits", [0, 63, 1.5, True])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(ValueError, match=r"pass_through_bits must be an integer in \[1, 62\]"):
        make("percentile", pass_through_bits=bits)
    with pytest.raises(ValueError, match=r"output_bits must be an integer in \[1, 62\]"):
        make("hashing", output_bits=bits)


@both_kinds
@pytest.mark.parametrize("data", [np.zeros([3, 2], np.float32), np.zeros(3, np.int64), "text"])
def test_adapting_to_data_of_no_batch_form_is_refused(kind, data):
    layer = adapted(kind)
    with pytest.raises(ValueError, match="inputs must be"):
        layer.adapt(data)
    assert rows_of(layer(form("padded"))) == expected_rows(layer)
