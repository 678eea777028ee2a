"""Checkpoints of tables whose rows are in files equal checkpoints of tables in memory."""

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint.training import batches
from tests.pairwise import on_both
from twml_ops import layers, optimizers
from twml_ops.checkpoint import CheckpointManager, TablePolicy, restore, variables_of
from twml_ops.placement import placement_of

N, FIELDS = 50, 5


def make_model(path=None, optimizer=None):
    tf.keras.utils.set_random_seed(1)
    storage = None if path is None else layers.Tiered(path, cache_rows=48)
    inputs = [tf.keras.Input([FIELDS], dtype="int64"), tf.keras.Input([FIELDS])]
    initializer = tf.keras.initializers.RandomNormal(seed=3)
    linear = layers.SparseLinear(
        4, N, kernel_initializer=initializer, storage=storage, name="linear"
    )
    output = tf.keras.layers.Dense(1, kernel_initializer="ones")(linear(inputs))
    model = tf.keras.Model(inputs, output)
    model.compile(optimizer or optimizers.LazyAdam(0.1), "mse")
    return model


def train(model, found):
    for x, y in found:
        model.train_on_batch(x, y)


def kernel(model):
    table = model.get_layer("linear").kernel
    return placement_of(table).read(table).numpy()


@pytest.mark.one_tf
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("resumed_in_memory", [False, True])
def test_a_resumed_training_equals_an_undisturbed_one(tmp_path, background, resumed_in_memory):
    found = list(batches(9))
    undisturbed = make_model()
    train(undisturbed, found)
    model = make_model(tmp_path / "rows")
    train(model, found[:5])
    with CheckpointManager(tmp_path / "ckpt", background=background) as manager:
        manager.save(5, variables_of(model), {})
        train(model, found[5:])  # the checkpoint has the rows of its own moment
    np.testing.assert_array_equal(kernel(model), kernel(undisturbed))
    resumed = make_model(None if resumed_in_memory else tmp_path / "rows")
    train(resumed, found[:1])
    checkpoint = CheckpointManager(tmp_path / "ckpt").latest()
    checkpoint.verify()
    restore(checkpoint, variables_of(resumed))
    train(resumed, found[5:])
    np.testing.assert_array_equal(kernel(resumed), kernel(undisturbed))
    assert {v.name: v.view().tobytes() for v in variables_of(resumed)} == {
        v.name: v.view().tobytes() for v in variables_of(undisturbed)
    }


@pytest.mark.parametrize(
    "policy", on_both(["one-shot", "consecutive", "intermittent"], "intermittent")
)
def test_checkpoints_of_changed_rows_restore_the_training(tmp_path, policy):
    found = list(batches(9))
    model = make_model(tmp_path / "rows", optimizers.Adagrad(0.1))
    with CheckpointManager(tmp_path / "ckpt", tables=TablePolicy(policy)) as manager:
        for step in (3, 6, 9):
            train(model, found[step - 3 : step])
            manager.save(step, variables_of(model), {})
    resumed = make_model(tmp_path / "rows", optimizers.Adagrad(0.1))
    train(resumed, found[:1])
    restore(CheckpointManager(tmp_path / "ckpt").latest(), variables_of(resumed))
    for a, b in zip(variables_of(resumed), variables_of(model), strict=True):
        np.testing.assert_array_equal(a.view(), b.view())


@pytest.mark.one_tf
def test_quantized_checkpoints_are_those_of_a_table_in_memory(tmp_path):
    read = []
    for path in (None, tmp_path / "rows"):
        model = make_model(path, optimizers.Adagrad(0.1))
        train(model, batches(4))
        folder = tmp_path / f"ckpt-{path is None}"
        policy = TablePolicy(bits={"*": 4})
        with CheckpointManager(folder, tables=policy) as manager:
            manager.save(4, variables_of(model), {})
        latest = CheckpointManager(folder).latest()
        read.append({name: latest.read(name).tobytes() for name in latest.entries})
    assert read[0] == read[1]


def test_a_checkpoint_is_restored_before_the_first_step_where_the_slots_are_made_in_it(tmp_path):
    found = list(batches(6))
    undisturbed = make_model()
    train(undisturbed, found)
    model = make_model(tmp_path / "rows")
    train(model, found[:4])
    with CheckpointManager(tmp_path / "ckpt") as manager:
        manager.save(4, variables_of(model), {})
    resumed = make_model(tmp_path / "rows")
    x, y = found[0]
    resumed(x)
    # It is traced and does not run.
    tf.function(lambda: resumed.train_step((x, y))).get_concrete_function()
    restore(CheckpointManager(tmp_path / "ckpt").latest(), variables_of(resumed))
    train(resumed, found[4:])
    np.testing.assert_array_equal(kernel(resumed), kernel(undisturbed))
