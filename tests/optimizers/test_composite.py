"""CompositeOptimizer: every variable is updated as its optimizer alone would update it."""

import copy

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers
from twml_ops._keras import KERAS_3

N, D = 20, 4


def data(seed=0, rows=64):
    rng = np.random.default_rng(seed)
    x = {f: rng.integers(0, N, (rows, 3)) for f in ("user", "ad")}
    return x, rng.integers(0, 2, (rows, 1)).astype(np.float32)


def model_of(optimizer):
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(3)
    inputs = {f: tf.keras.Input([3], dtype="int64", name=f) for f in ("user", "ad")}
    tables = {f: layers.SparseTable(N, D) for f in inputs}
    y = layers.GroupedSparseLinear(tables, name="tables")(inputs)
    y = tf.keras.layers.Concatenate()([y["user"], y["ad"]])
    y = tf.keras.layers.Dense(1, "sigmoid", name="top")(y)
    model = tf.keras.Model(inputs, y)
    model.compile(optimizer, "binary_crossentropy")
    return model


def composite(**arguments):
    return optimizers.CompositeOptimizer(
        tf.keras.optimizers.Adam(0.02, name="adam"),
        {"user": optimizers.RowWiseAdagrad(0.3), "ad": optimizers.SGD(0.5, clipvalue=1e-3)},
        **arguments,
    )


def weights_of(model):
    return {getattr(v, "path", v.name): v.numpy() for v in model.trainable_variables}


def only(optimizer, pattern):
    """Training with `optimizer` for the variables of `pattern` and none for the others."""
    rest = optimizers.SGD(0.0)
    return optimizers.CompositeOptimizer(rest, {pattern: optimizer})


def test_one_step_equals_that_of_each_optimizer_alone():
    x, y = data()
    got = model_of(composite())
    got.fit(x, y, batch_size=64, verbose=0)
    alone = {
        "user": optimizers.RowWiseAdagrad(0.3),
        "ad": optimizers.SGD(0.5, clipvalue=1e-3),
        "top|dense": tf.keras.optimizers.Adam(0.02),
    }
    for pattern, optimizer in alone.items():
        want = model_of(optimizer)
        want.fit(x, y, batch_size=64, verbose=0)
        expected = weights_of(want)
        for path, value in weights_of(got).items():
            if any(p in path for p in pattern.split("|")):
                np.testing.assert_allclose(
                    value, expected[path], rtol=1e-5, atol=1e-6, err_msg=path
                )


def test_the_tables_are_updated_by_the_fused_pass(executed):
    model = model_of(composite())
    with executed() as ran:
        model.fit(*data(), batch_size=64, verbose=0)
    assert ran["fused"] == 1  # the clipped one takes the slices
    assert ran["by slices"] == 1


def test_every_optimizer_counts_its_own_steps():
    optimizer = composite()
    model_of(optimizer).fit(*data(), batch_size=16, epochs=2, verbose=0)
    assert [int(o.iterations) for o in (optimizer, *optimizer.all_optimizers)] == [8] * 4


def test_the_first_pattern_that_matches_counts():
    first, second, default = optimizers.SGD(), optimizers.Adagrad(), optimizers.LazyAdam()
    optimizer = optimizers.CompositeOptimizer(default, {"us": first, "user": second})
    assert optimizer.optimizer_of(tf.Variable(0.0, name="user")) is first
    assert optimizer.optimizer_of(tf.Variable(0.0, name="ad")) is default


def test_the_learning_rate_is_that_of_the_default_optimizer():
    optimizer = composite()
    assert float(optimizer.learning_rate) == pytest.approx(0.02)
    optimizer.learning_rate = 0.01
    assert float(optimizer.default.learning_rate) == pytest.approx(0.01)


def test_config_round_trip():
    config = composite(name="mine").get_config()
    again = optimizers.CompositeOptimizer.from_config(copy.deepcopy(config))
    assert again.get_config() == config
    assert [type(o) for o in again.all_optimizers] == [type(o) for o in composite().all_optimizers]
    serialize, deserialize = tf.keras.optimizers.serialize, tf.keras.optimizers.deserialize
    assert deserialize(serialize(composite())).get_config() == composite().get_config()


@pytest.mark.parametrize("how", ["keras", "checkpoint"])
def test_training_goes_on_where_it_was_saved(tmp_path, how):
    x, y = data()
    model = model_of(composite())
    model.fit(x, y, batch_size=32, verbose=0, shuffle=False)
    if how == "keras":
        model.save(tmp_path / "model.keras")
        again = tf.keras.models.load_model(tmp_path / "model.keras")
    else:
        prefix = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
        again = model_of(composite())
        again.fit(*data(seed=9), batch_size=64, verbose=0)
        tf.train.Checkpoint(model=again).restore(prefix).assert_existing_objects_matched()
    for m in (model, again):
        m.fit(x, y, batch_size=32, verbose=0, shuffle=False)
    # In order: Keras 2 names the variables of a loaded model otherwise.
    for got, want in zip(again.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_allclose(
            got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6, err_msg=want.name
        )


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 wraps optimizers by itself")
def test_it_works_under_loss_scaling():
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    model = model_of(composite())
    before = weights_of(model)
    model.fit(*data(), batch_size=32, verbose=0)
    assert all(np.any(before[p] != v) for p, v in weights_of(model).items() if "bias" not in p)


def test_a_pattern_that_matches_nothing_gives_a_warning():
    x, y = data()
    parts = {"user": optimizers.SGD(0.1), "users?": optimizers.SGD(0.1)}
    model = model_of(optimizers.CompositeOptimizer(optimizers.Adagrad(0.1), parts))
    with pytest.warns(UserWarning, match=r"pattern 'users\?' of .* no variable, .*user"):
        model.train_on_batch(x, y)


def test_variables_of_a_loaded_model_keep_their_optimizers(tmp_path, recwarn):
    x, y = data()
    parts = {"ad": optimizers.SGD(0.5), "top": optimizers.LazyAdam(0.02)}
    model = model_of(optimizers.CompositeOptimizer(optimizers.Adagrad(0.1), parts))
    model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")

    def chosen(m):
        return [type(m.optimizer.optimizer_of(v)) for v in m.trainable_variables]

    assert chosen(again) == chosen(model)
    assert len(set(chosen(again))) == 3
    assert not [w for w in recwarn if "CompositeOptimizer" in str(w.message)]


@pytest.mark.skipif(KERAS_3, reason="in Keras 3 the weights of all layers keep their paths")
def test_without_saved_choices_the_names_of_tables_are_found():
    x, y = data()
    model = model_of(composite())
    model.train_on_batch(x, y)
    config = model.get_config(), model.get_build_config()
    again = tf.keras.Model.from_config(config[0])
    names = [v.name for v in again.trainable_variables]
    assert sum("user" in name for name in names) == sum("ad" in name for name in names) == 1


def test_an_optimizer_that_occurs_twice_is_refused():
    shared = optimizers.SGD()
    with pytest.raises(ValueError, match="got one twice"):
        optimizers.CompositeOptimizer(shared, {"x": shared})
