"""Costs equal the costs of the networks, their expectations at probabilities, and differentiate."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.research.architecture_search.planted import NUMBERS, SCHEMA, data_of, small_space
from twml_ops import research
from twml_ops.research import architecture_search as search


def spec_of(value):
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec((1, None), value.dtype, 1)
    return tf.TensorSpec((1, *value.shape[1:]), value.dtype)


@pytest.mark.parametrize("schema", [SCHEMA, NUMBERS], ids=["categories", "everything"])
def test_costs_of_an_architecture_are_counted_from_its_network_and_the_one_of_dhen(schema):
    space, data = small_space(), data_of(schema)
    costs = search.Supernet(space, schema, data).cost
    features = next(iter(data))[0]
    specs = {name: spec_of(value) for name, value in features.items()}
    architecture = space.draw(space.uniform(schema), np.random.default_rng(1))
    architecture |= {"dot": True, "hidden_1": 0}
    model = space.model(schema, data, architecture)
    other = research.dhen(schema, data, **space.options(schema, architecture))
    shapes = [tuple(v.shape) for v in model.trainable_variables]
    assert [tuple(v.shape) for v in other.trainable_variables] == shapes
    assert costs("bytes", architecture) == 4 * sum(map(np.prod, shapes))
    assert costs("flops", architecture) == search.count_flops(model, inputs=specs)


@pytest.fixture(scope="module")
def net():
    space = small_space(field_units=(), max_rows=(2, 6))
    return space, search.Supernet(space, SCHEMA, data_of())


@pytest.mark.one_tf
@pytest.mark.parametrize("kind", ["flops", "bytes"])
def test_a_cost_at_probabilities_is_the_expectation(net, kind):
    space, supernet = net
    rng = np.random.default_rng(3)
    weights = {n: rng.dirichlet(np.ones(p.shape[-1]), p.shape[:-1]) for n, p in _shapes(space)}
    names, every = list(weights), []
    expected = 0.0
    for name in names:
        rows = np.atleast_2d(weights[name])
        every.append(list(itertools.product(range(rows.shape[1]), repeat=len(rows))))
    for picked in itertools.product(*every):
        p, hot = 1.0, {}
        for name, ks in zip(names, picked, strict=True):
            rows = np.atleast_2d(weights[name])
            p *= np.prod([row[k] for row, k in zip(rows, ks, strict=True)])
            made = np.eye(rows.shape[1], dtype=np.float32)[list(ks)]
            hot[name] = made.reshape(weights[name].shape)
        expected += p * float(supernet.costs.of(kind, hot))
    at = {n: w.astype(np.float32) for n, w in weights.items()}
    assert float(supernet.costs.of(kind, at)) == pytest.approx(expected, rel=1e-5)


def _shapes(space):
    return space.uniform(SCHEMA).items()


@pytest.mark.one_tf
def test_the_gradient_of_a_cost_goes_to_every_choice_that_has_one(net):
    _, supernet = net
    with tf.GradientTape() as tape:
        p = {name: gate.probabilities() for name, gate in supernet.gates.items()}
        cost = supernet.costs.of("bytes", p)
    for gradient in tape.gradient(cost, supernet.logits):
        assert np.abs(gradient).max() > 0


@pytest.mark.one_tf
def test_latencies_are_measured_once_for_each_candidate(net):
    space, supernet = net
    assert supernet.cost("latency", space.largest(SCHEMA)) > 0
    times = supernet.costs.latencies()
    assert times["dot"][0] == times["hidden_1"][0] == 0
    assert (times["hidden_0"] > 0).all()
    assert supernet.costs.latencies() is times


@pytest.mark.one_tf
def test_an_unknown_cost_is_named(net):
    with pytest.raises(ValueError, match="must be some of flops, bytes, latency, got 'power'"):
        net[1].costs.of("power", {})
