"""Tests of the checkpoints of a cluster, run by test_one_process.py in a child process."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.distribute.parameter_server.model import ROWS, batches, builder, same, whole_batches
from tests.distribute.parameter_server.trainers import (
    TWO_WORKERS,
    child_test,
    expect_error,
    grouped_model,
    train_alone,
    trainer,
    weights_of_snapshots,
)
from tests.small_files import small_files
from twml_ops import _keras, layers, optimizers
from twml_ops.checkpoint import CheckpointManager
from twml_ops.checkpoint.manifest import MANIFEST
from twml_ops.cli.checkpoints import problems_of, table_of
from twml_ops.distribute.parameter_server import checkpoint as checkpoints
from twml_ops.distribute.parameter_server import (
    iter_checkpoints,
)


@child_test
def a_checkpoint_is_restored_on_another_number_of_servers_and_the_other_axis():
    want = train_alone(optimizers.RowWiseAdagrad(0.1), steps=7)
    with tempfile.TemporaryDirectory() as folder:
        for servers, axis, steps in ((2, "row", 4), (1, "row", 5), (2, "column", 6)):
            options = {"partition_axis": axis, "checkpoint_dir": folder, "checkpoint_every": 100}
            hybrid = trainer(optimizers.RowWiseAdagrad(0.1), servers, **options)
            result = hybrid.fit(batches, steps)
            assert result.step == steps
            assert result.own_steps == (4 if steps == 4 else 1)
        hybrid = trainer(optimizers.RowWiseAdagrad(0.1), 3, partition_axis="row", **{
            "checkpoint_dir": folder, "checkpoint_every": 100})  # fmt: skip
        hybrid.fit(batches, 7)
        # A step by column has an accumulator for each half of a row.
        same(want, hybrid.export().get_weights(), 2e-2)
        assert len(found(folder)) == checkpoints.MAX_TO_KEEP
        assert len(os.listdir(folder)) == checkpoints.MAX_TO_KEEP + 1  # and the lock


@child_test
def an_average_that_was_begun_goes_on_after_a_checkpoint():
    for policy in ("full", "consecutive"):
        seen = []
        with tempfile.TemporaryDirectory() as folder:
            for servers, axis, steps in ((2, "row", (1, 2)), (1, "row", (3,)), (2, "column", (4,))):
                hybrid = trainer(
                    optimizers.Adagrad(0.1),
                    servers,
                    partition_axis=axis,
                    checkpoint_dir=folder,
                    checkpoint_policy=policy,
                )
                seen += weights_of_snapshots(hybrid, steps)
            hybrid.use_average()
        assert int(hybrid.state.snapshots.numpy()) == 0
        mean = [np.mean(each, axis=0) for each in zip(*seen, strict=True)]
        same(mean, hybrid.export().get_weights(), 1e-6)


@child_test
def changed_rows_of_shards_restore_what_all_rows_restore():
    """On another number of servers and the other axis."""
    weights = {}
    for policy in ("full", "consecutive"):
        with tempfile.TemporaryDirectory() as folder:
            for servers, axis, steps in ((3, "row", 3), (2, "column", 5)):
                options = {"partition_axis": axis, "checkpoint_dir": folder, "checkpoint_every": 1}
                hybrid = trainer(
                    optimizers.RowWiseAdagrad(0.1), servers, checkpoint_policy=policy, **options
                )
                hybrid.fit(batches, steps)
            weights[policy] = hybrid.export().get_weights()
            newest = found(folder)[-1]
            assert newest.manifest.step == 5
            assert (newest.manifest.base is None) == (policy == "full")
            newest.verify()
            damage(next(newest.folder.glob("server-0*data*")))
            expect_error(ValueError, "damaged", newest.verify)
    # Two trainings, in which the last bits of TensorFlow's sums may differ on a busy machine.
    same(weights["consecutive"], weights["full"], 1e-6)


@child_test
def checkpoints_that_others_need_are_kept():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "checkpoint_every": 1}
        hybrid = trainer(optimizers.Adagrad(0.1), checkpoint_policy="one-shot", **options)
        hybrid.fit(lambda _: whole_batches(), 4)
        all_of_them = found(folder)
        assert [each.manifest.step for each in all_of_them] == [1, 3, 4]
        first, _, last = all_of_them
        assert [each.manifest.base for each in all_of_them] == [None, *[first.folder.name] * 2]
        shutil.rmtree(first.folder)
        expect_error(ValueError, "No such file", last.verify)
        assert "No such file" in dict(problems_of(Path(folder)))[last.folder.name]
        hybrid.save()  # its base is gone, so it has all rows
        newest = found(folder)[-1]
        assert newest.manifest.base is None
        newest.verify()
        listed = table_of(Path(folder)).splitlines()[1:]  # without any that lacks its base
        assert [line.split()[0] for line in listed] == [newest.folder.name]
        assert dict(problems_of(Path(folder))) == {newest.folder.name: None}


@child_test
def as_many_checkpoints_are_kept_as_was_said():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "checkpoint_every": 1}
        hybrid = trainer(optimizers.SGD(0.1), checkpoint_keep=3, **options)
        hybrid.fit(lambda _: whole_batches(), 5)
        assert [each.manifest.step for each in found(folder)] == [3, 4, 5]
        hybrid = trainer(optimizers.SGD(0.1), checkpoint_keep=1, **options)
        hybrid.fit(lambda _: whole_batches(), 6)
        assert [each.manifest.step for each in found(folder)] == [6]
    expect_error(
        ValueError,
        "checkpoint_keep must be at least 1, got 0",
        lambda: trainer(optimizers.SGD(0.1), checkpoint_keep=0),
    )


def found(folder):
    """The complete checkpoints, from the oldest to the newest."""
    return CheckpointManager(folder).all()


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@child_test
def a_checkpoint_without_manifest_is_ignored():
    with tempfile.TemporaryDirectory() as folder:
        hybrid = trainer(optimizers.SGD(0.1), checkpoint_dir=folder, checkpoint_every=3)
        hybrid.fit(batches, 3)
        manager, good = CheckpointManager(folder), found(folder)[-1].folder
        os.makedirs(os.path.join(folder, "ckpt-00000009-step-9"))
        assert manager.newest_intact().folder == good
        manifest = good / MANIFEST
        text = manifest.read_text()
        for part in (0, 1, len(text) // 2, len(text) - 1):
            manifest.write_text(text[:part])
            assert manager.latest() is None
            assert CheckpointManager(folder).newest_intact() is None
        manifest.write_text(text)
        assert manager.newest_intact().folder == good
        manifest.unlink()
        assert CheckpointManager(folder).newest_intact() is None


@child_test
def a_checkpoint_that_cannot_be_written_is_a_warning_and_its_rows_come_again():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "checkpoint_every": 2, "partition_axis": "row"}
        hybrid = trainer(optimizers.Adagrad(0.1), checkpoint_policy="consecutive", **options)
        hybrid.fit(batches, 2)
        hybrid.fit(lambda _: whole_batches()[2:], 3)
        with (
            small_files(100),
            pytest.warns(RuntimeWarning, match="step 4 cannot be written.*large"),
        ):
            hybrid.fit(lambda _: whole_batches()[3:], 5, on_step=None)
        steps = [each.manifest.step for each in found(folder)]
        assert steps == [2, 3]
        assert len(os.listdir(folder)) == 2 + 1  # and the lock
        hybrid.fit(lambda _: whole_batches()[5:], 6)
        assert found(folder)[-1].manifest.base is not None
        again = trainer(optimizers.Adagrad(0.1), **options)
        again.fit(batches, 6)
        same(hybrid.export().get_weights(), again.export().get_weights())


@child_test
def the_manifest_is_written_after_all_files():
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        replace, files = os.replace, []

        def finish(part, manifest):
            files.append(sorted(f for f in os.listdir(os.path.dirname(part)) if "index" in f))
            replace(part, manifest)

        patch.setattr(os, "replace", finish)
        hybrid = trainer(optimizers.SGD(0.1), 2, wide_model, checkpoint_dir=folder)
        hybrid.fit(batches, 1)
        assert files == [["dense.index", "server-0-of-2.index", "server-1-of-2.index"]]


def wide_model():
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    hidden = layers.SparseLinear(256, 100_000)(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))


@child_test
def a_run_goes_on_from_the_older_checkpoint_if_the_newest_is_damaged():
    for servers, file in ((2, "server-1*data*"), (2, "server-0*.index"), (1, "dense.data*")):
        with tempfile.TemporaryDirectory() as folder:
            options = {"partition_axis": "row", "checkpoint_dir": folder, "checkpoint_every": 2}
            hybrid = trainer(optimizers.Adagrad(0.1), servers, **options)
            hybrid.fit(batches, 4)
            want = hybrid.export().get_weights()
            damage(next(found(folder)[-1].folder.glob(file)))
            following = iter_checkpoints(builder, folder)
            again = trainer(optimizers.Adagrad(0.1), servers, **options)
            with pytest.warns(RuntimeWarning, match="damaged.*step-2 is used instead"):
                assert again.fit(batches, 4).own_steps == 2
            same(want, again.export().get_weights())
            step, model = next(following)  # the one that is damaged was removed
            assert step == 4
            same(want, model.get_weights())


@child_test
def a_run_goes_on_from_checkpoints_and_servers_with_its_facts_only():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "partition_axis": "row", "name": "facts"}
        first = {"data": "a.csv", "rate": 0.1, "start": "x"}
        trainer(optimizers.SGD(0.1), checkpoint_facts=first, **options).fit(batches, 2)
        for facts in ({**first, "data": "b.csv"}, {**first, "start": "y"}, {"data": "a.csv"}):
            hybrid = trainer(optimizers.SGD(0.1), checkpoint_facts=facts, **options)
            expect_error(
                ValueError, "was written by a training with", lambda h=hybrid: h.fit(batches, 2)
            )
        assert [each.manifest.step for each in found(folder)] == [2]
        resumed = trainer(
            optimizers.SGD(0.1), checkpoint_facts={**first, "start": "y"}, **options,
            facts_may_differ=["start"],
        )  # fmt: skip
        assert resumed.fit(batches, 3).own_steps == 1
        # Two workers share the dense weights, so the servers have all of a run.
        for facts, own_steps in (({"data": "a"}, 2), ({"data": "a"}, 0), ({"data": "b"}, 2)):
            hybrid = trainer(
                optimizers.SGD(0.1), cluster=TWO_WORKERS, mode="async", partition_axis="row",
                checkpoint_facts=facts, name="shared",
            )  # fmt: skip
            assert hybrid.fit(batches, 2).own_steps == own_steps


@child_test
def a_trainer_that_has_finished_leaves_the_servers_to_the_next_run():
    options = {"cluster": TWO_WORKERS, "mode": "async", "partition_axis": "row", "name": "again"}
    for _ in range(2):
        hybrid = trainer(optimizers.SGD(0.1), checkpoint_facts={}, **options)
        assert hybrid.fit(batches, 2).own_steps == 2
        hybrid.finish()


@child_test
def checkpoints_of_another_run_are_not_those_of_an_evaluator():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "partition_axis": "row"}
        trainer(optimizers.SGD(0.1), **options).fit(batches, 2)
        before = {each.folder.name for each in found(folder)}
        following = iter_checkpoints(builder, folder, 3, lambda c: c.folder.name not in before)
        trainer(optimizers.SGD(0.1), **options).fit(batches, 3)
        assert [step for step, _ in following] == [3]


@child_test
def a_checkpoint_of_another_model_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        trainer(optimizers.SGD(0.1), checkpoint_dir=folder).fit(batches, 1)
        expect_error(
            ValueError, "another model",
            lambda: trainer(optimizers.Adagrad(0.1), checkpoint_dir=folder).fit(batches, 2),
        )  # fmt: skip


def with_dropout():
    tf.keras.utils.set_random_seed(5)
    _keras.keep_random_state_in_variables()
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    hidden = layers.SparseLinear(8, ROWS, activation="relu")(inputs)
    hidden = tf.keras.layers.Dropout(0.5)(hidden)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


@child_test
def a_restored_run_goes_on_with_the_next_batch_and_the_same_random_numbers():
    def seekable(context, first_batch):
        del context
        every = whole_batches()
        return Rest(every[first_batch % len(every) :], every)

    weights = []
    for dataset_fn, stops in ((batches, (11,)), (batches, (3, 9, 11)), (seekable, (4, 9, 11))):
        with tempfile.TemporaryDirectory() as folder:
            for done, steps in zip((0, *stops), stops, strict=False):
                hybrid = trainer(
                    optimizers.Adagrad(0.1),
                    build=with_dropout,
                    partition_axis="row",
                    checkpoint_dir=folder,
                )
                assert hybrid.fit(dataset_fn, steps).own_steps == steps - done
        weights.append(hybrid.export().get_weights())
    for stopped in weights[1:]:
        same(weights[0], stopped)


class Rest:
    """A dataset whose first iteration is the rest of one."""

    def __init__(self, first, others):
        self._next, self._others = first, others

    def __iter__(self):
        batches_of_it, self._next = self._next, self._others
        return iter(batches_of_it)


@child_test
def iter_checkpoints_yields_each_checkpoint_as_an_ordinary_model():
    with tempfile.TemporaryDirectory() as folder:
        options = {"partition_axis": "row", "checkpoint_dir": folder, "checkpoint_every": 4}
        hybrid = trainer(optimizers.LazyAdam(0.1), 3, grouped_model, **options)
        each = iter_checkpoints(grouped_model, folder, 8)
        for steps in (4, 8):
            hybrid.fit(batches, steps)
            step, model = next(each)
            assert step == steps
            same(hybrid.export().get_weights(), model.get_weights())
        assert next(each, None) is None
        expect_error(
            ValueError, "another model", lambda: next(iter_checkpoints(small_model, folder))
        )
        endless = iter_checkpoints(grouped_model, folder)
        assert next(endless)[0] == 8
        shutil.rmtree(folder)
        assert next(endless, None) is None
        os.makedirs(folder)


def small_model():
    inputs = tf.keras.Input([None], dtype="int64", ragged=True)
    return tf.keras.Model(inputs, layers.SparseLinear(1, 5)(inputs))
