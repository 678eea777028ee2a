"""Snapshots of one run: when they are taken, what moves the weights, and how they are combined."""

import contextlib
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both
from twml_ops import core, distribute, export, layers, models, optimizers, research

N, ROWS = 30, 64


@pytest.fixture(autouse=True)
def _fresh_keras(fresh_keras):
    """For every test."""


def data(seed=0, batch=8):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, N, (ROWS, 4))
    y = (ids % 3 == 0).any(axis=1, keepdims=True).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, y)).batch(batch)


def compiled(optimizer=None, **options):
    tf.keras.utils.set_random_seed(1)
    x = tf.keras.Input([4], dtype="int64", name="ids")
    y = layers.SparseLinear(6, N, name="table")(x)
    y = tf.keras.layers.Dense(1, "sigmoid", name="top")(y)
    model = tf.keras.Model(x, y)
    model.compile(optimizer or optimizers.SGD(0.5), "binary_crossentropy", **options)
    return model


class Recorded(tf.keras.callbacks.Callback):
    """The learning rate of each step."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)))


def trained(model=None, epochs=2, **arguments):
    model = model or compiled()
    ensemble = research.SnapshotEnsemble(**{"num_snapshots": 4, **arguments})
    recorded = Recorded()
    model.fit(data(), epochs=epochs, verbose=0, callbacks=[ensemble, recorded])
    return model, ensemble, recorded.rates


@pytest.mark.one_tf
def test_the_learning_rate_is_half_a_cosine_in_each_cycle():
    model, ensemble, rates = trained()  # 16 steps, cycles of 4
    want = [0.25 * (1 + math.cos(math.pi * (t % 4) / 4)) for t in range(16)]
    np.testing.assert_allclose(rates, want, rtol=1e-5)
    assert float(tf.convert_to_tensor(model.optimizer.learning_rate)) == pytest.approx(0.5)
    assert len(ensemble.snapshots) == 4
    for got, want in zip(ensemble.snapshots[-1], model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.one_tf
@pytest.mark.parametrize("wrapper", ["none", "loss scale", "composite"])
def test_every_rate_of_a_composite_optimizer_follows(wrapper):
    top = tf.keras.optimizers.SGD(0.2)
    composite = optimizers.CompositeOptimizer(top, {"table": optimizers.Adagrad(0.4)})
    around = {
        "none": lambda o: o,
        "loss scale": optimizers.LossScaleOptimizer,
        "composite": lambda o: optimizers.CompositeOptimizer(optimizers.SGD(0.1), {".": o}),
    }
    model = compiled(around[wrapper](composite))
    ensemble = research.SnapshotEnsemble(2, cycle_steps=4)
    seen = []

    class Look(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            both = [o.learning_rate for o in composite.all_optimizers]
            seen.append([float(tf.convert_to_tensor(rate)) for rate in both])

    model.fit(data(), verbose=0, callbacks=[ensemble, Look()])
    np.testing.assert_allclose(np.array(seen)[:, 0], 2 * np.array(seen)[:, 1], rtol=1e-5)
    assert seen[2][1] == pytest.approx(0.1)


@pytest.mark.one_tf
@pytest.mark.parametrize(("epochs", "count", "sizes"), [(1, 3, [3, 3, 2]), (2, 5, [4, 4, 4, 4])])
def test_cycles_are_equally_long_and_the_last_may_be_shorter(epochs, count, sizes):
    _, ensemble, _ = trained(epochs=epochs, num_snapshots=count)
    assert len(ensemble.snapshots) == len(sizes)


def test_steps_that_run_together_are_counted():
    _, ensemble, _ = trained(compiled(steps_per_execution=4))
    assert len(ensemble.snapshots) == 4


def test_a_constant_rate_without_perturbation_trains_as_without_the_callback():
    model, ensemble, _ = trained(schedule="constant")
    alone = compiled()
    alone.fit(data(), epochs=2, verbose=0)
    for got, want in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    assert len({s[0].tobytes() for s in ensemble.snapshots}) == 4


def test_a_perturbation_moves_each_weight_by_its_share_away_from_the_snapshots():
    model = compiled(optimizers.SGD(0.0))
    ensemble = research.SnapshotEnsemble(3, "constant", perturbation=0.25, cycle_steps=2)
    before = [np.asarray(tf.convert_to_tensor(v)) for v in model.trainable_variables]
    # With a rate of 0 only this moves the weights.
    shift = [np.random.default_rng(3).normal(size=v.shape).astype("f") for v in before]

    class Move(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0:
                for v, d in zip(self.model.trainable_variables, shift, strict=True):
                    v.assign_add(d)

    model.fit(data(), verbose=0, callbacks=[ensemble, Move()])
    first = [b + d for b, d in zip(before, shift, strict=True)]
    moved = ensemble.snapshots[1]
    all_weights = [id(w) for w in model.weights]
    order = [all_weights.index(id(v)) for v in model.trainable_variables]
    for i, (start, d) in enumerate(zip(first, shift, strict=True)):
        want = start + 0.25 * np.linalg.norm(start) * d / np.linalg.norm(d)
        np.testing.assert_allclose(moved[order[i]], want, rtol=1e-4, atol=1e-5)
        # The second move goes away from the first snapshot, in the same direction.
        second = want + 0.25 * np.linalg.norm(want) * d / np.linalg.norm(d)
        np.testing.assert_allclose(ensemble.snapshots[2][order[i]], second, rtol=1e-4, atol=1e-5)


def test_rows_that_the_data_do_not_reach_stay_where_they_are():
    model = compiled()
    table = model.get_layer("table").kernel
    before = np.asarray(tf.convert_to_tensor(table))
    ids = tf.zeros([16, 4], tf.int64)
    ensemble = research.SnapshotEnsemble(2, perturbation=0.5)
    model.fit(ids, tf.ones([16, 1]), batch_size=8, verbose=0, callbacks=[ensemble])
    after = np.asarray(tf.convert_to_tensor(table))
    assert after[1:].tobytes() == before[1:].tobytes()
    assert np.any(after[0] != before[0])


@pytest.fixture(scope="module")
def run():
    tf.keras.backend.clear_session()
    return trained(perturbation=0.3)


def predictions(ensemble, features):
    return np.stack([m(features).numpy() for m in ensemble.members()])


@pytest.mark.parametrize(
    "combination", on_both(["mean_probability", "mean_logit", "weighted", "greedy"], "weighted")
)
def test_every_combination_is_its_formula_in_memory_in_a_file_and_exported(
    run, combination, tmp_path
):
    _, ensemble, _ = run
    features, labels = next(iter(data(seed=4, batch=ROWS)))
    p = predictions(ensemble, features)
    assert np.ptp(p, axis=0).min() > 0
    if combination == "mean_logit":
        want = 1 / (1 + np.exp(-np.log(p / (1 - p)).mean(axis=0)))
    else:
        find = {"weighted": research.log_loss_weights, "greedy": research.greedy_weights}
        weights = np.full(4, 0.25)
        if combination in find:
            weights = find[combination](p[:, :, 0], labels)
        want = np.tensordot(weights, p, 1)
    model = ensemble.ensemble(combination, data(seed=4))
    np.testing.assert_allclose(model(features), want, atol=1e-3)
    want = model(features)
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras", compile=False)
    np.testing.assert_allclose(loaded(features), want, atol=1e-6)
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(str(tmp_path / "stock"))(features)
    served = next(iter(served.values())) if isinstance(served, dict) else served
    np.testing.assert_allclose(served, want, atol=1e-6)


def ragged_members():
    made = []
    for seed in range(2):
        tf.keras.utils.set_random_seed(seed)
        x = tf.keras.Input([3], name="x")
        made.append(tf.keras.Model(x, tf.keras.layers.Dense(1, "sigmoid")(x)))
    return made


def test_the_scorer_takes_weights_and_the_mean_logit(tmp_path):
    members, x = ragged_members(), np.random.default_rng(0).normal(size=(5, 3)).astype("f")
    model = models.ensemble(members, weights=[0.25, 0.75])
    export.to_scorer(model, tmp_path / "scorer")
    got = core.Scorer.load(tmp_path / "scorer").predict({"x": x})
    np.testing.assert_allclose(got, 0.25 * members[0](x) + 0.75 * members[1](x), atol=1e-6)
    model = models.ensemble(members, combination="mean_logit")
    export.to_scorer(model, tmp_path / "other")
    got = core.Scorer.load(tmp_path / "other").predict({"x": x})
    np.testing.assert_allclose(got, model(x), atol=1e-6)


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [-0.5, 1.5]])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be 2 numbers >= 0 with sum 1"):
        models.ensemble(ragged_members(), weights=weights)


def loss(weights, p, y):
    mean = np.tensordot(weights, p, 1)
    return -np.log(np.where(y > 0.5, mean, 1 - mean)).mean()


def test_weights_have_the_lowest_loss_and_greedy_ones_come_near():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, 300).astype(float)
    p = np.clip(y * 0.4 + 0.3 + 0.2 * rng.normal(size=(3, 300)), 0.05, 0.95)
    best = research.log_loss_weights(p, y)
    assert best.sum() == pytest.approx(1)
    for _ in range(50):
        assert loss(best, p, y) <= loss(rng.dirichlet(np.ones(3)), p, y) + 1e-6
    greedy = research.greedy_weights(p, y)
    assert loss(greedy, p, y) <= min(loss(e, p, y) for e in np.eye(3))
    assert loss(greedy, p, y) == pytest.approx(loss(best, p, y), abs=2e-3)
    useless = np.stack([p[0], np.full(300, 0.5)])
    assert research.greedy_weights(useless, y)[0] > research.greedy_weights(useless, y)[1]


@pytest.mark.one_tf
def test_diversity_is_zero_for_equal_members_and_grows_with_the_perturbation():
    _, still, _ = trained(compiled(optimizers.SGD(0.0)), schedule="constant")
    assert still.diversity(data()).deviation < 1e-7
    found = [trained(perturbation=size)[1].diversity(data()).deviation for size in (0.0, 0.5)]
    assert found[0] < found[1]


@pytest.mark.slow
def test_replicas_take_the_snapshots_of_one():
    def run_on(strategy):
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = compiled(optimizers.SGD(0.1))
        return trained(model, perturbation=0.1)[1].snapshots

    got, want = run_on(distribute.mirrored_strategy(2)), run_on(None)
    for ours, alone in zip(got, want, strict=True):
        for a, b in zip(ours, alone, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_snapshots": 1}, "num_snapshots must be at least 2"),
        ({"schedule": "linear"}, "schedule must be cyclic or constant"),
        ({"perturbation": -1.0}, "perturbation must be finite and not negative"),
        ({"cycle_steps": 0}, "cycle_steps must be positive"),
    ],
)
def test_an_argument_out_of_range_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        research.SnapshotEnsemble(**arguments)


@pytest.mark.one_tf
def test_what_is_missing_is_named():
    empty = research.SnapshotEnsemble()
    with pytest.raises(ValueError, match="no snapshots yet"):
        empty.members()
    unknown = data().filter(lambda *_: True)
    with pytest.raises(ValueError, match="pass cycle_steps"):
        compiled().fit(unknown, verbose=0, callbacks=[research.SnapshotEnsemble()])
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    with pytest.raises(ValueError, match="must be a number"):
        trained(compiled(optimizers.SGD(schedule)))
    _, ensemble, _ = trained()
    with pytest.raises(ValueError, match="needs validation data"):
        ensemble.ensemble("greedy")
    with pytest.raises(ValueError, match="combination must be"):
        ensemble.ensemble("median")
