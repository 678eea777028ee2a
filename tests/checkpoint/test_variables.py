"""All variables of a training are found, saved, and restored into another model."""

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint.training import BATCH, batches, bits, make_model
from tests.pairwise import ONE_TF
from twml_ops import _keras, optimizers
from twml_ops.checkpoint import CheckpointError, CheckpointManager, restore, variables_of

pytestmark = pytest.mark.usefixtures("fresh_keras")


def train(model, count=4, seed=3):
    for batch in batches(count, seed):
        logs = model.train_on_batch(*batch, **({} if _keras.KERAS_3 else {"reset_metrics": False}))
    return logs


def test_every_kind_of_state_is_found_once():
    model = make_model()
    train(model)
    found = variables_of(model)
    assert len({v.name for v in found}) == len(found)
    assert len({id(c) for v in found for c in v.copies}) == sum(len(v.copies) for v in found)
    names = " ".join(v.label for v in found)
    for part in (
        "max_norm", "sparse_linear/kernel", "category_rows/keys", "dropout/", "moving_mean",
        "dense/kernel", "optimizer/iteration", "optimizer/learning_rate", "true_positives",
        "metrics/loss/total",
    ):  # fmt: skip
        assert part in names, names
    table = next(v for v in found if v.label.startswith("sparse_linear/kernel"))
    slots = [v for v in found if v.name.startswith("optimizer") and v.fits("float32", [50, 4])]
    assert any(v.variable.shape.as_list() == [None, 3] for v in found)  # of the exact metric
    assert (table.variable.shape, len(slots)) == ((50, 4), 2)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        pytest.param(lambda: optimizers.LazyAdam(0.01), marks=ONE_TF),
        pytest.param(
            lambda: optimizers.Adagrad(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)),
            marks=ONE_TF,
        ),
        lambda: optimizers.CompositeOptimizer(
            tf.keras.optimizers.Adam(0.01), {"sparse_linear": optimizers.Ftrl(0.1)}
        ),
        pytest.param(
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), dynamic_growth_steps=3),
            marks=ONE_TF,
        ),
    ],
)
def test_training_that_is_restored_continues_bit_for_bit(tmp_path, make_optimizer):
    model = make_model(make_optimizer())
    train(model)
    with CheckpointManager(tmp_path) as manager:
        manager.save(4, variables_of(model), {})
    undisturbed = train(model, seed=4)

    other = make_model(make_optimizer())  # Keras gives its layers other names
    train(other, 1, seed=9)  # creates everything, and changes it
    restore(manager.latest(), variables_of(other))
    resumed = train(other, seed=4)
    assert bits(other) == bits(model)
    assert resumed == undisturbed


@pytest.mark.skipif(not _keras.KERAS_3, reason="of Keras 3")
def test_gradients_that_are_accumulated_are_part_of_the_state(tmp_path):
    def make():
        return make_model(optimizers.LazyAdam(0.01, gradient_accumulation_steps=3))

    model = make()
    train(model, 4)
    with CheckpointManager(tmp_path) as manager:
        manager.save(4, variables_of(model), {})
    train(model, 4, seed=4)
    other = make()
    train(other, 1, seed=9)
    restore(manager.latest(), variables_of(other))
    train(other, 4, seed=4)
    assert bits(other) == bits(model)


@pytest.mark.one_tf
def test_state_of_another_size_is_restored(tmp_path):
    model, other = make_model(), make_model()
    train(model, 4)
    train(other, 1)
    rows = next(v for v in variables_of(other) if v.variable.shape.as_list() == [None, 3])
    rows.assign(np.zeros([3 * BATCH, 3], np.float32))
    with CheckpointManager(tmp_path) as manager:
        manager.save(4, variables_of(model), {})
    restore(manager.latest(), variables_of(other))
    assert bits(other) == bits(model)


@pytest.mark.one_tf
def test_another_model_is_refused_and_unchanged(tmp_path):
    model = make_model()
    train(model, 1)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, variables_of(model), {})
    for other, message in (
        (
            make_model(units=5),
            r"sparse_linear\S*/kernel is float32 \[50, 5\], in it float32 \[50, 4\]",
        ),
        (make_model(optimizers.SGD(0.1)), "only in it"),
    ):
        train(other, 1, seed=9)
        before = bits(other)
        with pytest.raises(CheckpointError, match=f"another model or optimizer: .*{message}"):
            restore(manager.latest(), variables_of(other))
        assert bits(other) == before


def test_a_damaged_checkpoint_changes_nothing(tmp_path):
    model = make_model()
    train(model, 1)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, variables_of(model), {})
    data = manager.latest().folder / "data-00000"
    data.write_bytes(data.read_bytes()[:-4] + b"0000")  # in the last variable
    before = bits(model)
    with pytest.raises(CheckpointError, match="damaged"):
        restore(manager.latest(), variables_of(model))
    assert bits(model) == before


def test_strings_are_refused():
    with pytest.raises(CheckpointError, match="names: values of string cannot be saved"):
        variables_of(make_model(), {"names": tf.Variable(["a"])})


def test_other_objects_are_saved_by_name():
    class Average(tf.Module):
        def __init__(self):
            super().__init__()
            self.of_weights = [tf.Variable(1.0), tf.Variable([2.0])]

    found = variables_of(make_model(), {"average": Average(), "none": None})
    assert [v.name for v in found][-2:] == [f"more/average/of_weights/{i}" for i in range(2)]
