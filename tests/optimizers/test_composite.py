"""CompositeOptimizer: every variable is updated as its optimizer alone would update it."""

import copy
import zipfile

import h5py
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


def parts_of_two(**options):
    """An optimizer with a part for the variable `a`, and the variables `a` and `b`."""
    kind = tf.keras.Variable if KERAS_3 else tf.Variable
    variables = [kind(np.ones(2, np.float32), name=name) for name in "ab"]
    part = optimizers.LazyAdam(0.1, **options)
    return optimizers.CompositeOptimizer(optimizers.SGD(0.1), {"^a": part}), part, variables


def test_a_part_without_gradients_counts_the_step_and_changes_nothing():
    optimizer, part, (a, b) = parts_of_two()
    plain, (x, y) = optimizers.LazyAdam(0.1), parts_of_two()[2]
    one = tf.ones([2])
    for of_a in (one, None, one):
        optimizer.apply_gradients([(of_a, a), (one, b)])
        plain.apply_gradients([(of_a, x), (one, y)])
    np.testing.assert_array_equal(a.numpy(), x.numpy())
    assert int(part.iterations) == int(optimizer.iterations) == 3
    with pytest.raises(ValueError, match=r"[Nn]o gradients provided"):
        optimizer.apply_gradients([(None, a), (None, b)])


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 scales the loss in `minimize` only")
def test_while_one_part_scales_the_loss_no_part_takes_gradients_that_overflow():
    _, part, variables = parts_of_two()
    scaled = optimizers.LossScaleOptimizer(part, initial_scale=4.0)
    optimizer = optimizers.CompositeOptimizer(optimizers.SGD(0.1), {"^a": scaled})
    optimizer.build(variables)
    for value in (np.inf, np.nan):
        grads = [tf.fill([2], value)] * 2
        optimizer.apply_gradients(list(zip(grads, variables, strict=True)))
    assert float(optimizer.scale_loss(tf.constant(1.0))) == 1.0  # halved twice
    assert [v.numpy().tolist() for v in variables] == [[1, 1], [1, 1]]


@pytest.mark.parametrize("wrapper", ["none", "loss scale", "composite"])
def test_callbacks_of_keras_set_the_learning_rates_of_all_parts(wrapper):
    if wrapper != "none" and not KERAS_3:
        pytest.skip("callbacks of Keras 2 set one rate")
    wrap = {
        "none": lambda o: o,
        "loss scale": optimizers.LossScaleOptimizer,
        "composite": lambda o: optimizers.CompositeOptimizer(optimizers.SGD(0.1), {".": o}),
    }[wrapper]
    x, y = data()
    kinds = tf.keras.callbacks
    for callback in (
        kinds.LearningRateScheduler(lambda epoch, rate: rate / 2),
        kinds.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=100.0),
    ):
        optimizer = wrap(composite())
        before = [float(o.learning_rate) for o in optimizer.optimizers]
        model_of(optimizer).fit(x, y, epochs=2, verbose=0, callbacks=[callback])
        after = [float(o.learning_rate) for o in optimizer.optimizers]
        changed = [a < b for a, b in zip(after, before, strict=True)]
        assert all(changed) if KERAS_3 else changed[-1]
    assert len(optimizer.optimizers) == (4 if wrapper == "composite" else 3)
    assert wrapper == "composite" or optimizer.optimizers["user"] is optimizer.optimizers[0]
    assert isinstance(optimizer.optimizers, list)


@pytest.mark.parametrize("wrapper", ["none", "loss scale"])
def test_a_file_has_every_slot_once(tmp_path, wrapper):
    if wrapper == "loss scale" and not KERAS_3:
        pytest.skip("the class of Keras 2 writes the optimizer twice")
    wrap = optimizers.LossScaleOptimizer if wrapper == "loss scale" else (lambda o: o)
    model = model_of(wrap(composite()))
    model.train_on_batch(*data())
    model.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        archive.extract("model.weights.h5", tmp_path)
    slots = []

    def visit(name, item):
        if "optimizer" in name and isinstance(item, h5py.Dataset) and item.shape[:1] == (N,):
            slots.append(name)

    with h5py.File(tmp_path / "model.weights.h5") as file:
        file.visititems(visit)
    assert len(slots) == 1  # the accumulator of "user"
