"""A search finds planted architectures, and what it finds trains, saves, exports and scores."""

import numpy as np
import pytest
import tensorflow as tf

from tests.research.architecture_search.planted import SCHEMA, data_of, small_space
from twml_ops import core, distribute, export
from twml_ops.optimizers import LazyAdam
from twml_ops.research import architecture_search as search
from twml_ops.research.architecture_search.search import _Run


class Activation(search.Choice):
    """A choice of the user: the activation of the dense layers before it."""

    def chosen(self, x, candidate, name):
        return tf.keras.layers.Activation(candidate, name=name)(x)


def searched(space, **settings):
    arguments = {"warm_up": 1, "epochs": 4, "every": 1, "learning_rate": 0.02, "samples": 2}
    chosen = search.Settings(**{**arguments, "logit_learning_rate": 0.2, **settings})
    return search.search(space, SCHEMA, data_of(), data_of(rows=256, seed=1), chosen)


@pytest.mark.one_tf
def test_what_is_needed_stays_and_what_is_not_goes():
    space = small_space(max_rows=(), dense=[search.DenseWidth("hidden", (2, 4, 8), 0.0)])
    cheap = searched(space, costs={"flops": 100.0})
    assert cheap.architecture == {"field_units": [1, 1, 1], "dot": False, "hidden": 2}
    assert cheap.costs["flops"] < 0.2 * cheap.largest["flops"]
    assert [e.searching for e in cheap.epochs] == [False, True, True, True, True]
    assert cheap.epochs[-1].costs["flops"] < cheap.epochs[0].costs["flops"]
    assert cheap.examples == 5 * 512 + 4 * 8 * 64
    good = searched(space, costs={"flops": 0.0}, epochs=8)
    assert good.architecture["dot"]
    assert good.epochs[-1].loss < 0.1 < cheap.epochs[-1].loss


@pytest.fixture(scope="module")
def run():
    settings = search.Settings(
        costs={"bytes": 1.0}, warm_up=1, epochs=2, every=3, temperature=(4.0, 1.0)
    )
    return _Run(small_space(), SCHEMA, data_of(), data_of(seed=1), settings)


@pytest.mark.one_tf
def test_each_step_changes_its_variables_only_and_the_warm_up_no_logits(run):
    batch = next(iter(data_of()))
    net = run.supernet

    def values(variables):
        return [np.asarray(v).copy() for v in variables]

    def changed(before, variables):
        return [not np.array_equal(a, v) for a, v in zip(before, variables, strict=True)]

    logits, weights = values(net.logits), values(net.network_variables)
    run._train(run._update_logits, batch)
    assert all(changed(logits, net.logits))
    assert not any(changed(weights, net.network_variables))
    logits = values(net.logits)
    run.epoch(1)
    assert not any(changed(logits, net.logits))
    assert sum(changed(weights, net.network_variables)) > len(weights) // 2


@pytest.mark.one_tf
def test_the_temperature_falls_exponentially_to_its_last_value(run):
    seen = []
    for _ in range(6):  # 8 batches, of which 0, 3, 6 are followed by a step of the logits
        run._cool()
        seen.append({float(np.asarray(g.temperature)) for g in run.supernet.gates.values()})
    np.testing.assert_allclose([max(s) for s in seen], 4.0 ** (1 - np.arange(6) / 5), rtol=1e-5)
    assert all(len(s) == 1 for s in seen)


@pytest.mark.one_tf
def test_the_shared_weights_of_an_architecture_are_those_of_its_network():
    space, data = small_space(max_rows=()), data_of()
    net = search.Supernet(space, SCHEMA, data)
    for i, v in enumerate(net.network_variables):
        v.assign(tf.random.stateless_normal(v.shape, [i, 7], stddev=0.5))
    architecture = {"field_units": [2, 1, 2], "dot": True, "hidden_0": 2, "hidden_1": 3}
    model = space.model(SCHEMA, data, architecture)
    rows = model.get_layer("embedding").num_rows
    starts = np.cumsum([0, *rows])
    table = np.asarray(net.model.get_layer("embedding").embeddings)
    matrices = np.asarray(net.model.get_layer("projections").matrices)
    for width, fields in ((1, [1]), (2, [0, 2])):
        parts = [table[starts[f] : starts[f + 1], :width] for f in fields]
        own = next(t for t in model.get_layer("embedding").tables if t.units == width)
        own.variable.assign(np.concatenate(parts))
        own.projection.assign(matrices[fields, :width])
    names = {"dot": "dot_block", "linear_block": "linear_block"}
    names |= {name: name for name in ("linear", "logit")}
    for name, shared in names.items():
        model.get_layer(name).set_weights(net.model.get_layer(shared).get_weights())
    kernels = {"hidden_0": "hidden_0_dense", "hidden_1": "hidden_1_dense"}
    size = net.model.get_layer("flat").output.shape[1]
    for name, shared in kernels.items():
        kernel, bias = net.model.get_layer(shared).get_weights()
        width = architecture[name]
        model.get_layer(name).set_weights([kernel[:size, :width], bias[:width]])
        size = width
    (last,) = net.model.get_layer("deep_logit").get_weights()
    model.get_layer("deep_logit").set_weights([last[:size]])
    net.fix(architecture)
    features = next(iter(data))[0]
    np.testing.assert_allclose(net.model(features), model(features), rtol=1e-5)


@pytest.mark.one_tf
def test_what_is_found_trains_comes_back_from_a_file_and_is_exported(tmp_path):
    space, data = small_space(), data_of()
    rng = np.random.default_rng(5)
    architecture = space.draw(space.uniform(SCHEMA), rng) | {"dot": True, "hidden_1": 3}
    model = space.model(SCHEMA, data, architecture)
    model.compile(LazyAdam(0.02), "binary_crossentropy", jit_compile=False)
    losses = model.fit(data, epochs=6, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0]
    features = next(iter(data))[0]
    want = model(features)
    model.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras", compile=False)
    np.testing.assert_allclose(again(features), want, rtol=1e-5)
    export.to_stock_tf(model, tmp_path / "stock")
    got = tf.saved_model.load(tmp_path / "stock")(features)
    got = next(iter(got.values())) if isinstance(got, dict) else got
    np.testing.assert_allclose(got, want, atol=1e-6)
    export.to_scorer(model, tmp_path / "scorer")
    got = core.Scorer.load(tmp_path / "scorer").predict({k: v.numpy() for k, v in features.items()})
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.slow
def test_a_choice_of_the_user_is_searched_like_the_others(tmp_path):
    activation = Activation("activation", ("linear", "tanh"))
    dense = [search.DenseWidth("hidden", (4,), 0.0), activation]
    space = small_space(field_units=(), max_rows=(), interactions=(), dense=dense)
    found = searched(space, epochs=1)
    assert found.architecture["activation"] in activation.candidates
    assert found.probabilities["activation"].shape == (2,)
    with pytest.raises(ValueError, match="research.dhen has no option for activation"):
        space.options(SCHEMA, found.architecture)
    model = space.model(SCHEMA, data_of(), found.architecture | {"activation": "tanh"})
    model.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras", compile=False)
    assert again.get_layer("activation").activation is tf.keras.activations.tanh


@pytest.mark.slow
def test_a_strategy_trains_what_is_found_and_refuses_the_search():
    space, data = small_space(field_units=(), max_rows=(), dense=()), data_of(rows=128)
    strategy = distribute.mirrored_strategy(2)
    with strategy.scope():
        with pytest.raises(ValueError, match="a search trains on one replica"):
            search.search(space, SCHEMA, data, data)
        model = space.model(SCHEMA, data, {"dot": True})
        model.compile(LazyAdam(0.02), "binary_crossentropy", jit_compile=False)
    losses = model.fit(data, epochs=2, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.one_tf
def test_a_net_for_searches_is_refused_by_the_scorer(tmp_path):
    net = search.Supernet(small_space(), SCHEMA, data_of())
    with pytest.raises(ValueError, match="shared_vectors|gate_|projections"):
        export.to_scorer(net.model, tmp_path / "scorer")


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"costs": {"power": 1.0}}, "costs must be some of flops, bytes, latency, got 'power'"),
        ({"costs": {"flops": -1.0}}, r"costs\['flops'\] must be finite and not negative"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"temperature": (0.1, 1.0)}, "temperature must be positive and not increase"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
    ],
)
def test_settings_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        search.Settings(**arguments)


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": (3,)}, "options must be some of"),
        ({"interactions": ("dot", "dot")}, "must have names of their own"),
        ({"interactions": ("linear",)}, "must have names of their own"),
    ],
)
def test_spaces_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        small_space(**arguments)


@pytest.mark.one_tf
def test_what_a_space_lacks_is_named():
    with pytest.raises(ValueError, match="at least one choice"):
        search.SearchSpace()
    with pytest.raises(ValueError, match="hidden_0 must be of"):
        small_space().one_hot({"hidden_0": 7})
    space, data = small_space(), data_of()
    with pytest.raises(ValueError, match="held_out must have at least one batch"):
        search.search(space, SCHEMA, data, data.take(0))
    other = [search.DenseWidth("a", (2,), 0.1), search.DenseWidth("b", (2,), 0.2)]
    uneven = small_space(dense=other)
    with pytest.raises(ValueError, match="dense layers must have one dropout"):
        uneven.options(SCHEMA, uneven.largest(SCHEMA))
