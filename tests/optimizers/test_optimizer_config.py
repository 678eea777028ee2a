"""Configs, arguments and saved state of the optimizers."""

import copy
import inspect

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.optimizer_cases import OPTIMIZERS, D, N, Schedule, random, slots_of, stock
from tests.pairwise import on_both
from twml_ops import layers, optimizers
from twml_ops._keras import KERAS_3


@pytest.mark.parametrize("rate", [0.05, Schedule(0.1, 10, 0.5)], ids=["float", "schedule"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_config_round_trip(name, rate):
    ours, _, arguments = OPTIMIZERS[name]
    optimizer = ours(rate, name="mine", clipnorm=2.0, weight_decay=0.01, **arguments)
    config = optimizer.get_config()
    assert {k: config[k] for k in arguments} == arguments
    assert ours.from_config(copy.deepcopy(config)).get_config() == config
    again = stock.deserialize(stock.serialize(optimizer))
    assert type(again) is ours
    assert again.get_config() == config
    assert (again.name, again.clipnorm, again.weight_decay) == ("mine", 2.0, 0.01)


@pytest.mark.parametrize("name", on_both(OPTIMIZERS, "SGD", "LazyAdam", "Ftrl"))
def test_training_goes_on_where_it_was_saved(name, tmp_path):
    ours, _, arguments = OPTIMIZERS[name]
    ids = tf.keras.Input((3,), dtype="int64")
    hidden = layers.SparseLinear(D, N)(ids)
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(hidden))
    model.compile(ours(Schedule(0.1, 2, 0.9), **arguments), "mse")
    x = np.random.default_rng(0).integers(0, N, (8, 3))
    y = random(8, 1)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    for got, want in zip(slots_of(again.optimizer), slots_of(model.optimizer), strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    for m in (model, again):
        m.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    for got, want in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoints_restore_the_slots(name, tmp_path):
    ours, _, arguments = OPTIMIZERS[name]

    def make():
        w = tf.Variable(random(N, D))
        return w, ours(0.1, **arguments)

    def step(w, optimizer):
        gradient = tf.IndexedSlices(random(3, D, seed=1), tf.constant([5, 2, 5]), [N, D])
        optimizer.apply_gradients([(gradient, w)])

    w, optimizer = make()
    step(w, optimizer)
    checkpoint = tf.train.Checkpoint(w=w, optimizer=optimizer)
    path = checkpoint.save(str(tmp_path / "checkpoint"))
    other, into = make()
    into.build([other])
    tf.train.Checkpoint(w=other, optimizer=into).restore(path).assert_existing_objects_matched()
    for v, o in ((w, optimizer), (other, into)):
        step(v, o)
    np.testing.assert_array_equal(other.numpy(), w.numpy())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimizers.Momentum(momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (lambda: optimizers.LazyAdam(beta_1=-0.1), r"beta_1 must be in \[0, 1\), got -0.1"),
        (lambda: optimizers.LazyAdam(beta_2=1), r"beta_2 must be in \[0, 1\), got 1"),
        (
            lambda: optimizers.Adagrad(initial_accumulator_value=-1.0),
            "initial_accumulator_value must not be negative, got -1.0",
        ),
        (lambda: optimizers.LazyAdam(epsilon=0.0), "epsilon must be positive .*, got 0.0"),
        (
            lambda: optimizers.RowWiseAdagrad(initial_accumulator_value=0.0, epsilon=0),
            "epsilon must be positive, or 0 with a positive initial_accumulator_value .*, got 0",
        ),
        (
            lambda: optimizers.Ftrl(learning_rate_power=0.5),
            "learning_rate_power must not be positive, got 0.5",
        ),
        (
            lambda: optimizers.Ftrl(l1_regularization_strength=-1.0),
            "l1_regularization_strength must not be negative, got -1.0",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


OPTIONS_OF_ALL = {
    "concurrency": "hogwild",
    "rounding_seed": 3,
    "weight_decay": 0.01,
    "clipvalue": 2.0,
    "use_ema": True,
    "ema_momentum": 0.9,
    "ema_overwrite_frequency": 7,
}
OPTIONS_OF_KERAS_3 = {"loss_scale_factor": 8.0, "gradient_accumulation_steps": 3}
OPTIONS = {**OPTIONS_OF_ALL, **(OPTIONS_OF_KERAS_3 if KERAS_3 else {})}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_option_is_a_keyword_and_comes_back_from_the_config(name):
    ours, _, arguments = OPTIMIZERS[name]
    keywords = set(optimizers.OptimizerOptions.__annotations__)
    assert keywords >= {*OPTIONS_OF_ALL, *OPTIONS_OF_KERAS_3, "clipnorm", "global_clipnorm"}
    base = inspect.signature(optimizers.SparseOptimizer).parameters
    assert keywords - {"jit_compile", "is_legacy_optimizer"} <= set(base)
    optimizer = ours(0.1, **OPTIONS, **arguments)
    again = ours.from_config(optimizer.get_config())
    for option, value in OPTIONS.items():
        assert getattr(again, option) == getattr(optimizer, option) == value


def test_an_option_that_is_not_known_is_refused():
    with pytest.raises(TypeError, match="SGD has no argument 'clip_norm'; did you mean clipnorm?"):
        optimizers.SGD(0.1, clip_norm=1.0)  # it takes the keywords of Keras 2
    with pytest.raises(TypeError, match="no argument 'lr'; did you mean learning_rate?"):
        optimizers.LazyAdam(lr=0.1)
    with pytest.raises(TypeError, match="no argument 'betta_1'; did you mean beta_1?"):
        optimizers.LazyAdam(betta_1=0.1)
    with pytest.raises(TypeError, match="SGD has no argument 'xyzzy'$"):
        optimizers.SGD(0.1, xyzzy=1.0)
    with pytest.raises(TypeError, match="clipnorm"):
        optimizers.CompositeOptimizer(optimizers.SGD(0.1), {}, clipnorm=1.0)


def test_an_optimizer_is_found_by_its_name_or_its_config():
    for name in ("LazyAdam", "lazy_adam", "lazyadam", "LAZY-ADAM"):
        assert type(optimizers.get(name)) is optimizers.LazyAdam
    for kind in (optimizers.SGD, optimizers.Momentum, optimizers.Adagrad, optimizers.Ftrl):
        assert type(optimizers.get(kind.__name__)) is kind
    assert type(optimizers.get("row_wise_adagrad")) is optimizers.RowWiseAdagrad
    optimizer = optimizers.LazyAdam(0.25, beta_1=0.5)
    assert optimizers.get(optimizer) is optimizer
    again = optimizers.get(tf.keras.optimizers.serialize(optimizer))
    assert type(again) is optimizers.LazyAdam
    assert again.beta_1 == 0.5
    with pytest.raises(ValueError, match="one of sgd, .* got 'adam'; did you mean 'lazy_adam'"):
        optimizers.get("adam")
    with pytest.raises(ValueError, match="must be a name, a config or an optimizer, got 3"):
        optimizers.get(3)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has these options")
@pytest.mark.parametrize("option", OPTIONS_OF_KERAS_3)
def test_an_option_of_keras_3_is_refused_under_keras_2(option):
    value = OPTIONS_OF_KERAS_3[option]
    with pytest.raises(
        ValueError, match=rf"{option} is an option of Keras 3 .* 2\..*, got {value}"
    ):
        optimizers.SGD(0.1, **{option: value})


def test_a_config_is_the_arguments_of_the_constructor():
    for kind in (optimizers.SGD, optimizers.Adagrad, optimizers.LazyAdam, optimizers.Ftrl):
        config = kind(0.25, clipvalue=1.0).get_config()
        assert kind(**config).get_config() == config
    for option in ("jit_compile", "is_legacy_optimizer"):
        with pytest.raises(ValueError, match=f"{option} must be False, got True"):
            optimizers.SGD(0.1, **{option: True})


# The parts of configs that differ, as both versions of Keras write them.
CONFIGS = {
    "Keras 2": {"weight_decay": 0, "jit_compile": False, "is_legacy_optimizer": False},
    "Keras 3": {
        "weight_decay": None,
        "loss_scale_factor": None,
        "gradient_accumulation_steps": None,
    },
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_configs_of_both_versions_of_keras_load(config):
    common = {
        **{"name": "mine", "learning_rate": 0.5, "clipnorm": None, "global_clipnorm": None},
        **{"clipvalue": 1.5, "use_ema": False, "ema_momentum": 0.99},
        **{"ema_overwrite_frequency": None, "concurrency": "locked", "rounding_seed": 4},
    }
    optimizer = optimizers.LazyAdam.from_config({**common, **config, "beta_1": 0.5})
    assert (optimizer.name, optimizer.clipvalue, optimizer.beta_1) == ("mine", 1.5, 0.5)
    assert optimizer.rounding_seed == 4
    assert float(optimizer.current_learning_rate()) == 0.5


def test_the_current_learning_rate_is_that_of_the_next_update():
    optimizer = optimizers.SGD(Schedule(1.0, 1, 0.5))
    assert optimizer.follows_schedule
    assert not optimizers.SGD(1.0).follows_schedule
    w = tf.Variable([1.0])
    for want in (1.0, 0.5, 0.25):
        assert float(optimizer.current_learning_rate()) == want
        optimizer.apply_gradients([(tf.constant([0.0]), w)])
