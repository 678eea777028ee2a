"""A training that is stopped and continued equals one that was never stopped."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tests.checkpoint.training import BATCH, bits, dataset, make_model, make_small_model
from tests.pairwise import on_both
from twml_ops import _keras, optimizers
from twml_ops.checkpoint import (
    CheckpointCallback,
    CheckpointError,
    CheckpointManager,
    State,
    TrainingInterrupted,
    deferred_interrupt,
)
from twml_ops.data import InputPosition

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("fresh_keras")
STEPS, EPOCHS = 10, 3
EXAMPLES = (STEPS - 1) * BATCH + 9


class Stop(tf.keras.callbacks.Callback):
    """Fails after a number of steps, as a process that is killed."""

    def __init__(self, after):
        super().__init__()
        self._left = after

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("stopped")


class Recorder(tf.keras.callbacks.Callback):
    """Records what callbacks are told; its record is part of the checkpoints."""

    def __init__(self):
        super().__init__()
        self.events = []

    def on_train_batch_begin(self, batch, logs=None):
        self.events.append(["begin", int(batch)])

    def on_train_batch_end(self, batch, logs=None):
        self.events.append(
            ["end", min(int(batch), STEPS - 1), {k: float(v) for k, v in logs.items()}]
        )

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(["epoch", epoch, {k: float(v) for k, v in logs.items()}])

    def checkpoint_state(self):
        return State({"events": list(self.events)}, {"count": np.array(len(self.events))})

    def restore_state(self, state):
        assert int(state.arrays["count"]) == len(state.values["events"])
        self.events = list(state.values["events"])


def fit(
    folder, *, stop_after=None, model=None, epochs=EPOCHS, background=False, callbacks=(), **options
):
    """Continues from the folder's last checkpoint, if any; the model and the recorded events."""
    model = model or make_small_model(steps_per_execution=options.pop("steps_per_execution", 1))
    recorder = Recorder()
    validation = dataset(InputPosition(), False, 2)
    with CheckpointManager(folder, background=background) as manager:
        checkpoint = CheckpointCallback(
            manager,
            num_examples=EXAMPLES,
            batch_size=BATCH,
            seed=7,
            states={"recorder": recorder},
            **{"every_steps": 3, **options},
        )
        checkpoint.resume(model)
        stop = [] if stop_after is None else [Stop(stop_after)]
        model.fit(
            **checkpoint.input(model, lambda **at: dataset(**at, count=STEPS)),
            epochs=epochs,
            validation_data=validation,
            verbose=0,
            callbacks=[*callbacks, recorder, *stop, checkpoint],
        )
    return model, recorder.events


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The bits and the events of a training that was not stopped."""
    model, events = fit(tmp_path_factory.mktemp("undisturbed"))
    return bits(model), events


def check_resumed(tmp_path, stops, undisturbed, **options):
    for after in stops:
        with pytest.raises(RuntimeError, match="stopped"):
            fit(tmp_path / "resumed", stop_after=after, **options)
    resumed, resumed_events = fit(tmp_path / "resumed", **options)
    assert (bits(resumed), resumed_events) == undisturbed


@pytest.mark.one_tf
@pytest.mark.parametrize("stops", [(1,), (4, 2, 12), (10, 3)])
def test_a_resumed_run_equals_an_undisturbed_one(tmp_path, stops, undisturbed):
    check_resumed(tmp_path, stops, undisturbed)


@pytest.mark.one_tf
def test_a_run_resumed_from_the_checkpoint_before_a_damaged_one_equals_an_undisturbed_one(
    tmp_path, undisturbed
):
    with pytest.raises(RuntimeError, match="stopped"):
        fit(tmp_path / "resumed", stop_after=10)
    data = CheckpointManager(tmp_path / "resumed").latest().folder / "data-00000"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="1 bytes too short; the older .* is used instead"):
        check_resumed(tmp_path, (), undisturbed)


def test_every_kind_of_state_is_resumed(tmp_path):
    def run(folder, **options):
        return fit(folder, model=make_model(), epochs=2, **options)

    expected, events = run(tmp_path / "undisturbed")
    with pytest.raises(RuntimeError, match="stopped"):
        run(tmp_path / "resumed", stop_after=17)
    resumed, resumed_events = run(tmp_path / "resumed")
    assert bits(resumed) == bits(expected)
    assert resumed_events == events


@pytest.mark.one_tf
@pytest.mark.parametrize("every_steps", [4, 5])  # 5: also while the averages are in the model
def test_averaged_weights_are_resumed(tmp_path, every_steps):
    def run(folder, **options):
        model = make_small_model(optimizers.LazyAdam(0.05, use_ema=True, ema_momentum=0.9))
        swap = optimizers.SwapEMAWeights(swap_on_epoch=True)
        options |= {"every_steps": every_steps, "callbacks": [swap], "epochs": 2}
        return fit(folder, model=model, **options)

    expected, events = run(tmp_path / "undisturbed")
    with pytest.raises(RuntimeError, match="stopped"):
        run(tmp_path / "resumed", stop_after=13)
    resumed, resumed_events = run(tmp_path / "resumed")
    assert bits(resumed) == bits(expected)
    assert resumed_events == events
    finished, _ = run(tmp_path / "undisturbed")  # from its last checkpoint
    for mine, theirs in zip(finished.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.one_tf
def test_several_steps_in_an_execution(tmp_path):
    model, events = fit(tmp_path / "undisturbed", steps_per_execution=4)
    check_resumed(tmp_path, (2, 4), (bits(model), events), steps_per_execution=4)


def test_eager_steps(tmp_path):
    def run(folder, **options):
        return fit(folder, model=make_small_model(run_eagerly=True), epochs=1, **options)

    expected, _ = run(tmp_path / "undisturbed")
    with pytest.raises(RuntimeError, match="stopped"):
        run(tmp_path / "resumed", stop_after=8)
    assert bits(run(tmp_path / "resumed")[0]) == bits(expected)


def test_checkpoints_do_not_change_the_training(tmp_path):
    model = make_small_model()
    model.fit(dataset(InputPosition(), False, STEPS), epochs=2, verbose=0)
    checked, _ = fit(tmp_path, epochs=2, background=True)
    expected, got = bits(model), bits(checked)
    for name in expected:
        assert got[name] == expected[name] or name.startswith("metrics/")


@pytest.mark.one_tf
def test_a_checkpoint_knows_the_position_that_the_steps_have_consumed(tmp_path):
    fit(tmp_path, epochs=1, every_steps=4)
    positions = [c.manifest.values["position"] for c in CheckpointManager(tmp_path).all()]
    expected = [InputPosition(7, 0, 4 * BATCH), InputPosition(7, 0, 8 * BATCH)]
    assert positions == [p.as_dict() for p in expected]
    assert [c.manifest.step for c in CheckpointManager(tmp_path).all()] == [4, 8]


@pytest.mark.one_tf
def test_a_checkpoint_of_the_last_step_of_an_epoch_begins_the_next_one(tmp_path):
    fit(tmp_path, epochs=2, every_steps=5)
    positions = [c.manifest.values["position"] for c in CheckpointManager(tmp_path, keep=9).all()]
    assert positions[-3:] == [
        InputPosition(7, e, n * BATCH).as_dict() for e, n in [(1, 0), (1, 5), (2, 0)]
    ]


@pytest.mark.one_tf
def test_every_so_many_seconds(tmp_path):
    fit(tmp_path, epochs=1, every_steps=None, every_seconds=1e-9)  # after each step
    steps = [c.manifest.step for c in CheckpointManager(tmp_path).all()]
    assert steps == [8, 9, 10]


@pytest.mark.one_tf
def test_nothing_is_left_to_train_after_the_last_epoch(tmp_path):
    expected, _ = fit(tmp_path, every_steps=5)
    resumed, _ = fit(tmp_path, every_steps=5)
    got, want = bits(resumed), bits(expected)
    assert got.keys() >= {name for name in want if name.startswith("optimizer/")}
    for name in got:
        assert got[name] == want[name] or name.startswith("metrics/"), name


@pytest.mark.parametrize("number", on_both([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_a_signal_ends_the_training_with_a_checkpoint(tmp_path, number, undisturbed):
    class Signal(Stop):
        def on_train_batch_end(self, batch, logs=None):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), number)

    for after in (4, 9):
        handler = signal.getsignal(number)
        with deferred_interrupt() as interrupt, CheckpointManager(tmp_path / "r") as manager:
            model, recorder = make_small_model(), Recorder()
            checkpoint = CheckpointCallback(
                manager, num_examples=EXAMPLES, batch_size=BATCH, seed=7, every_steps=100,
                states={"recorder": recorder}, interrupt=interrupt,
            )  # fmt: skip
            checkpoint.resume(model)
            with pytest.raises(TrainingInterrupted):
                model.fit(
                    **checkpoint.input(model, lambda **at: dataset(**at, count=STEPS)),
                    epochs=EPOCHS,
                    validation_data=dataset(InputPosition(), False, 2),
                    verbose=0,
                    callbacks=[Signal(after), recorder, checkpoint],
                )
        assert signal.getsignal(number) is handler
    assert CheckpointManager(tmp_path / "r").latest().manifest.step == 13
    resumed, resumed_events = fit(tmp_path / "r", every_steps=100)
    assert (bits(resumed), resumed_events) == undisturbed


@pytest.mark.one_tf
def test_a_write_error_is_reported_and_training_continues(tmp_path):
    folder = tmp_path / "file"
    folder.write_text("")
    with pytest.warns(RuntimeWarning, match="no checkpoints can be written here"):
        model, _ = fit(folder / "checkpoints", epochs=1)
    assert int(model.optimizer.iterations) == STEPS

    def fail(error):
        raise error

    with pytest.raises(CheckpointError, match="no checkpoints can be written here"):
        fit(folder / "checkpoints", epochs=1, on_error=fail)


@pytest.fixture(scope="module")
def of_values(tmp_path_factory):
    """Checkpoints of a training with the values {"a": 1}."""
    folder = tmp_path_factory.mktemp("of_values")
    fit(folder, epochs=1, values={"a": 1})
    return folder


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_examples": 99}, r"num_examples = 153, got 99"),
        ({"batch_size": 8}, "batch_size = 16, got 8"),
        ({"seed": 8}, "seed = 7, got 8"),
        ({"values": {"a": 2}}, "a = 1, got 2"),
        ({"values": {}}, "a = 1, got None"),
        ({"states": {}}, "has other states: recorder"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(of_values, change, message):
    options = {
        "num_examples": EXAMPLES, "batch_size": BATCH, "seed": 7, "values": {"a": 1},
        "states": {"recorder": Recorder()}, "every_steps": 1,
    }  # fmt: skip
    checkpoint = CheckpointCallback(CheckpointManager(of_values), **{**options, **change})
    with pytest.raises(CheckpointError, match=message):
        checkpoint.resume(make_small_model())


@pytest.mark.one_tf
def test_another_optimizer_is_refused(tmp_path):
    fit(tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match="another model or optimizer"):
        fit(tmp_path, epochs=1, model=make_small_model(optimizers.LazyAdam(0.1)))


REPLICAS = """
import sys
from pathlib import Path
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
from tests.checkpoint.test_callback import check_replicas

check_replicas(Path(sys.argv[1]))
"""


def test_replicas_of_a_strategy(tmp_path):
    # In a process of its own, because strategies of one process share the keys of collectives.
    command = ["-c", REPLICAS, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = forked.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def check_replicas(tmp_path):
    def run(folder, **options):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        tf.keras.utils.set_random_seed(1)
        with strategy.scope():
            x = tf.keras.Input([5])
            y = tf.keras.layers.Dense(1, activation="sigmoid")(x)
            model = tf.keras.Model(x, y)
            model.compile(optimizers.Adagrad(0.1), "mse", metrics=[tf.keras.metrics.AUC(name="a")])

        def values(**at):
            return dataset(**at, count=STEPS).map(lambda x, y: (x[1], y))

        return _fit_model(folder, model, values, **options)

    expected = run(tmp_path / "undisturbed")
    with pytest.raises(RuntimeError, match="stopped"):
        run(tmp_path / "resumed", stop_after=14)
    assert bits(run(tmp_path / "resumed")) == bits(expected)


def _fit_model(folder, model, make_dataset, stop_after=None):
    with CheckpointManager(folder, background=False) as manager:
        checkpoint = CheckpointCallback(
            manager, num_examples=EXAMPLES, batch_size=BATCH, seed=7, every_steps=3
        )
        checkpoint.resume(model)
        stop = [] if stop_after is None else [Stop(stop_after)]
        model.fit(
            **checkpoint.input(model, make_dataset),
            epochs=2, verbose=0, callbacks=[*stop, checkpoint],
        )  # fmt: skip
    return model


@pytest.mark.skipif(_keras.KERAS_3, reason="of Keras 2")
def test_a_random_state_in_a_kernel_is_named(tmp_path):
    tf.keras.backend.experimental.disable_tf_random_generator()
    model = tf.keras.Sequential([tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)])
    model.compile(optimizers.SGD(0.1), "mse")
    with pytest.warns(UserWarning, match="random state of the layer 'dropout' is in a kernel"):
        _fit_model(
            tmp_path, model, lambda **at: dataset(**at, count=STEPS).map(lambda x, y: (x[1], y))
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "every_steps or every_seconds must be given, got neither"),
        ({"every_steps": 0}, "every_steps must be positive, got 0"),
        ({"every_seconds": -1.0}, "every_seconds must be positive, got -1.0"),
        ({"every_steps": 1, "batch_size": 0}, "batch_size must be positive, got 0"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        CheckpointCallback(
            CheckpointManager("x"), **{"num_examples": 1, "batch_size": 1, **options}
        )
