"""Shampoo equals its formulas, wherever its blocks are."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import each_value, on_both
from tests.research.numpy_shampoo import NumpyShampoo, inverse_root
from twml_ops import distribute, layers, optimizers, research
from twml_ops._keras import KERAS_3
from twml_ops.research._inverse_roots import inverse_roots
from twml_ops.research._shampoo_blocks import assign_owners, blocks_of, join_blocks

SHAPES = [(9, 6), (7,), (1, 3), (), (3, 2, 5), (4, 1, 4)]
OPTIONS = {
    "beta_1": 0.9,
    "beta_2": 1.0,
    "epsilon": 1e-3,
    "max_preconditioner_dim": 4,
    "start_preconditioning_step": 3,
    "precondition_frequency": 2,
    "grafting": "adam",
    "grafting_beta_2": 0.95,
    "grafting_epsilon": 1e-6,
}
STEPS = 8


def gradients(rng):
    return [rng.normal(size=s).astype(np.float32) for s in SHAPES]


def variables(rng):
    return [
        tf.Variable(rng.normal(size=s).astype(np.float32), name=f"v{i}")
        for i, s in enumerate(SHAPES)
    ]


CHANGED = {
    "adam": {},
    "sgd": {"beta_1": 0.0, "grafting": "sgd"},
    "adagrad": {"beta_2": 0.9, "grafting": "adagrad"},
    "whole": {"max_preconditioner_dim": 100, "start_preconditioning_step": 1, "beta_2": 0.99},
}


@pytest.mark.one_tf
@each_value(changed=CHANGED, root_method=["eigh", "coupled_newton"], compiled=[False, True])
def test_every_step_is_that_of_the_formulas(changed, root_method, compiled):
    options, rng = {**OPTIONS, **CHANGED[changed]}, np.random.default_rng(0)
    weights = variables(rng)
    optimizer = research.Shampoo(0.1, root_method=root_method, **options)
    reference = NumpyShampoo(0.1, **options)
    want = [w.numpy().astype(np.float64) for w in weights]

    def step(*values):
        optimizer.apply_gradients(list(zip(values, weights, strict=True)))

    optimizer.build(weights)
    run = tf.function(step) if compiled else step
    for reference.step in range(1, STEPS + 1):
        values = gradients(rng)
        run(*map(tf.constant, values))
        want = [reference.update(i, *p) for i, p in enumerate(zip(want, values, strict=True))]
        for got, expected in zip(weights, want, strict=True):
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4)


def positive(rng, n, d, condition):
    q = np.linalg.qr(rng.normal(size=(n, d, d)))[0]
    values = np.geomspace(1, 1 / condition, d)
    return (q * values) @ np.swapaxes(q, 1, 2)


@pytest.mark.one_tf
@pytest.mark.parametrize("order", [1, 2, 4, 6])
@pytest.mark.parametrize("method", ["eigh", "coupled_newton"])
@pytest.mark.parametrize("d", [1, 2, 17])
def test_roots_are_those_of_float64(method, order, d):
    matrices = positive(np.random.default_rng(1), 3, d, 1e3)
    got, good = inverse_roots(tf.constant(matrices, tf.float32), order, 1e-6, method)
    want = np.stack([inverse_root(m, order, 1e-6) for m in matrices])
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
    assert good.numpy().all()


@pytest.mark.parametrize("method", ["eigh", "coupled_newton"])
def test_what_float32_cannot_compute_is_computed_in_float64(method):
    matrices = positive(np.random.default_rng(2), 2, 5, 10).astype(np.float32)
    matrices[1] *= 2e38  # products overflow
    got, good = inverse_roots(tf.constant(matrices), 4, 1e-6, method)
    want = np.stack([inverse_root(m.astype(np.float64), 4, 1e-6) for m in matrices])
    np.testing.assert_allclose(got[1].numpy(), want[1], rtol=1e-3, atol=1e-3 * want[1].max())
    alone, _ = inverse_roots(tf.constant(matrices[:1]), 4, 1e-6, method)
    np.testing.assert_allclose(got[0].numpy(), alone[0].numpy(), rtol=1e-5, atol=1e-6)
    assert good.numpy().all()


@pytest.mark.parametrize("method", ["eigh", "coupled_newton"])
def test_a_matrix_without_a_root_harms_no_other(method):
    matrices = positive(np.random.default_rng(3), 3, 4, 10).astype(np.float32)
    matrices[1, 2, 2] = np.nan
    got, good = inverse_roots(tf.constant(matrices), 2, 1e-6, method)
    assert good.numpy().tolist() == [True, False, True]
    np.testing.assert_array_equal(got[1].numpy(), np.eye(4))
    zeros, good = inverse_roots(tf.zeros([1, 3, 3]), 4, 1e-6, method)
    assert np.isfinite(zeros.numpy()).all()
    assert good.numpy().all()


@pytest.mark.parametrize("shape", [(1,), (4,), (5,), (8, 3), (9, 9, 2), (0, 3)])
def test_blocks_are_a_partition(shape):
    tensor = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    blocks = blocks_of(shape, 4)
    parts = [tf.slice(tensor, b.begin, b.shape) for b in blocks]
    assert sum(int(tf.size(p)) for p in parts) == tensor.size
    assert all(0 < d <= 4 for b in blocks for d in b.shape)
    if blocks:
        np.testing.assert_array_equal(join_blocks(parts, shape, 4).numpy(), tensor)


def test_no_replica_has_much_more_than_its_share():
    costs = np.random.default_rng(4).integers(1, 1000, 200).tolist()
    for replicas in (1, 2, 3, 8):
        owners = assign_owners(costs, replicas)
        sums = [
            sum(c for c, o in zip(costs, owners, strict=True) if o == r) for r in range(replicas)
        ]
        assert max(sums) <= 4 / 3 * max(max(costs), -(-sum(costs) // replicas))
    assert assign_owners([5, 5, 5, 5], 2) == [0, 1, 0, 1]


def test_a_weight_without_items_is_left_alone():
    weight = tf.Variable(tf.zeros([0, 3]))
    optimizer = research.Shampoo(0.1)
    optimizer.build([weight])
    optimizer.apply_gradients([(tf.zeros([0, 3]), weight)])
    assert int(optimizer.iterations) == 1


def test_gradients_that_are_not_finite_leave_the_roots_as_they_are():
    weight = tf.Variable(tf.ones([3, 2]))
    optimizer = research.Shampoo(0.1, start_preconditioning_step=1, precondition_frequency=1)
    optimizer.build([weight])
    optimizer.apply_gradients([(tf.random.stateless_normal([3, 2], (0, 1)), weight)])
    (state,) = optimizer._shampoo_state.blocks[optimizer._var_key(weight)]
    before = [r.numpy() for r in state.roots]
    optimizer.apply_gradients([(tf.fill([3, 2], float("nan")), weight)])
    for root, old in zip(state.roots, before, strict=True):
        np.testing.assert_array_equal(root.numpy(), old)


def test_a_sparse_gradient_is_refused():
    table = tf.Variable(tf.ones([5, 2]), name="table")
    optimizer = research.Shampoo(0.1)
    gradient = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([5, 2]))
    with pytest.raises(ValueError, match=r"dense gradients, got tf.IndexedSlices for 'table.*Comp"):
        optimizer.apply_gradients([(gradient, table)])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("beta_1", 1.0),
        ("beta_2", 0.0),
        ("epsilon", 0.0),
        ("max_preconditioner_dim", 0),
        ("start_preconditioning_step", 0),
        ("precondition_frequency", 1.5),
        ("grafting", "rmsprop"),
        ("grafting_beta_2", 1.0),
        ("grafting_epsilon", 0.0),
        ("root_method", "svd"),
    ],
)
def test_an_argument_out_of_range_is_named(argument, value):
    with pytest.raises(ValueError, match=f"{argument} must be .*got"):
        research.Shampoo(**{argument: value})


def test_config_round_trip():
    config = research.Shampoo(0.1, **OPTIONS, weight_decay=0.1).get_config()
    assert research.Shampoo.from_config(dict(config)).get_config() == config
    serialize, deserialize = tf.keras.optimizers.serialize, tf.keras.optimizers.deserialize
    assert deserialize(serialize(research.Shampoo(0.1))).get_config() == (
        research.Shampoo(0.1).get_config()
    )


# Models ----------------------------------------------------------------------------------------

N = 50


def batch(rows=32, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, N, (rows, 4)), rng.normal(size=(rows, 1)).astype(np.float32)


def small_model():
    tf.keras.utils.set_random_seed(2)
    x = tf.keras.Input([4], dtype="int64")
    hidden = layers.SparseLinear(6, N, name="table")(x)
    hidden = tf.keras.layers.Dense(5, "tanh", name="dense")(hidden)
    return tf.keras.Model(x, tf.keras.layers.Dense(1, name="top")(hidden))


def mixed(**options):
    shampoo = research.Shampoo(
        0.02,
        start_preconditioning_step=2,
        precondition_frequency=2,
        max_preconditioner_dim=4,
        epsilon=1e-2,
        **options,
    )
    return optimizers.CompositeOptimizer(shampoo, {"table": optimizers.Adagrad(0.1)})


def compiled(optimizer=None, **options):
    model = small_model()
    model.compile(optimizer or mixed(), "mse", jit_compile=False, **options)
    return model


@pytest.mark.parametrize("run_eagerly", on_both([False, True], False))
def test_fit_reduces_the_loss(fresh_keras, run_eagerly):
    model = compiled(run_eagerly=run_eagerly)
    losses = model.fit(*batch(), batch_size=16, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("how", on_both(["keras", "checkpoint"], "keras"))
def test_training_goes_on_where_it_was_saved(fresh_keras, tmp_path, how):
    x, y = batch()
    model = compiled()
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    if how == "keras":
        model.save(tmp_path / "model.keras")
        again = tf.keras.models.load_model(tmp_path / "model.keras")
    else:
        prefix = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
        again = compiled()
        again.fit(*batch(seed=5), batch_size=8, verbose=0)
        tf.train.Checkpoint(model=again).restore(prefix).assert_existing_objects_matched()
    for m in (model, again):
        m.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    for got, want in zip(again.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not KERAS_3, reason="an option of Keras 3")
def test_accumulated_gradients_are_one_step():
    def trained(values, **options):
        weight = tf.Variable(tf.ones([3, 2]))
        optimizer = research.Shampoo(0.1, start_preconditioning_step=1, **options)
        optimizer.build([weight])
        for value in values:
            optimizer.apply_gradients([(value, weight)])
        return weight.numpy()

    first, second = (tf.random.stateless_normal([3, 2], (0, i)) for i in range(2))
    got = trained([first, second] * 2, gradient_accumulation_steps=2)
    np.testing.assert_allclose(got, trained([(first + second) / 2] * 2), rtol=1e-5)


# Replicas --------------------------------------------------------------------------------------


def trained_on(strategy, tmp_path=None):
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = compiled()
    x, y = batch(rows=64)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    model.fit(data, epochs=2, verbose=0)
    return model


def shampoo_variables(model):
    found = model.optimizer.default.variables
    found = found() if callable(found) else found
    return {v.name: getattr(v, "_value", v) for v in found if len(v.shape) > 0}


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_equal_one_and_divide_the_state(fresh_keras, replicas):
    strategy = distribute.mirrored_strategy(replicas)
    got, want = trained_on(strategy), trained_on(None)
    for g, w in zip(got.trainable_variables, want.trainable_variables, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-4, atol=1e-4)
        first, *others = strategy.experimental_local_results(getattr(g, "_value", g))
        assert all(first.numpy().tobytes() == o.numpy().tobytes() for o in others)
    state = shampoo_variables(got)
    items = {}
    for variable in state.values():
        assert not hasattr(variable, "values")  # one copy, on one replica
        items[variable.device] = items.get(variable.device, 0) + int(tf.size(variable))
    assert len(items) == replicas
    assert sum(items.values()) == sum(int(tf.size(v)) for v in shampoo_variables(want).values())


@pytest.mark.slow
def test_files_do_not_depend_on_the_number_of_replicas(fresh_keras, tmp_path):
    model = trained_on(distribute.mirrored_strategy(2))
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    x, y = batch()
    again.train_on_batch(x, y)
    want = trained_on(None)
    want.train_on_batch(x, y)
    for g, w in zip(again.trainable_variables, want.trainable_variables, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-4, atol=1e-4)


def test_other_strategies_are_refused(monkeypatch):
    strategy = distribute.mirrored_strategy(2)

    class Elsewhere(type(strategy)):
        pass

    with strategy.scope():
        optimizer, weight = research.Shampoo(0.1), tf.Variable(tf.ones([2]))
    monkeypatch.setattr(optimizer._distribution_strategy, "__class__", Elsewhere)
    with pytest.raises(ValueError, match="MirroredStrategy, got a Elsewhere"):
        optimizer.build([weight])
