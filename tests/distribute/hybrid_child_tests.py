"""Tests of hybrid training, run by test_hybrid.py in a child process.

The process contains three servers and is connected to them.
"""

import contextlib
import os
import resource
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.child_process import ChildTests, serve_requests
from tests.distribute.hybrid_model import ROWS, batches, builder, same, whole_batches
from twml_ops import _keras, layers, optimizers
from twml_ops.cli.runs import checkpoint_list
from twml_ops.distribute.hybrid import (
    ChiefBuiltModel,
    Cluster,
    ClusterError,
    HybridTrainer,
    iter_checkpoints,
)
from twml_ops.distribute.hybrid import checkpoint as checkpoints
from twml_ops.distribute.hybrid.checkpoint_files import MANIFEST, shards_checkpoints
from twml_ops.distribute.hybrid.chief_built_model import _heartbeat as heartbeat
from twml_ops.distribute.hybrid.cluster import start_server
from twml_ops.distribute.launch import Ports
from twml_ops.ops._tape import tf_variable

PORTS = Ports(4)
*SERVERS, WORKER = [f"127.0.0.1:{port}" for port in PORTS.numbers]
child_test = ChildTests()


class ConnectedCluster(Cluster):
    """A cluster to which this process is connected already."""

    def connect(self, timeout):
        del timeout


def first_servers(count):
    return ConnectedCluster(SERVERS[:count], [WORKER])


_runs = iter(range(1000))


def trainer(optimizer, servers=2, build=builder, loss="binary_crossentropy", **options):
    options.setdefault("name", f"run{next(_runs)}")
    return HybridTrainer(build, optimizer, loss, cluster=first_servers(servers), **options)


def train_alone(optimizer, build=builder, steps=10, loss="binary_crossentropy"):
    model = build()
    model.compile(optimizer, loss, jit_compile=False)
    for x, y in (whole_batches() * 2)[:steps]:
        model.train_on_batch(x, y)
    return model.get_weights()


def table_only():
    """A model in which all ops but ours are elementwise, so that all graphs give the same bits."""
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    table = layers.SparseLinear(8, ROWS, activation="relu", use_bias=False)
    return tf.keras.Model(inputs, table(inputs))


@child_test
def training_by_column_equals_a_single_process_and_tables_are_bit_identical():
    for make in (lambda: optimizers.SGD(0.5), lambda: optimizers.LazyAdam(0.01, weight_decay=0.1)):
        hybrid = trainer(make(), build=table_only, loss="mse", partition_axis="column")
        hybrid.fit(batches, 10)
        same(train_alone(make(), table_only, loss="mse"), hybrid.export().get_weights())
        hybrid = trainer(make(), partition_axis="column")
        hybrid.fit(batches, 10)
        same(train_alone(make()), hybrid.export().get_weights(), 2e-5)


@child_test
def training_by_row_equals_a_single_process_except_for_the_order_of_additions():
    for servers, make in ((2, optimizers.Adagrad), (3, optimizers.RowWiseAdagrad)):
        hybrid = trainer(make(0.1), servers, partition_axis="row")
        hybrid.fit(batches, 10)
        same(train_alone(make(0.1)), hybrid.export().get_weights(), 2e-6)


@child_test
def layers_before_a_table_get_gradients():
    def build():
        return builder(norm=True)

    for axis in ("row", "column"):
        hybrid = trainer(optimizers.Adagrad(0.1), build=build, partition_axis=axis)
        hybrid.fit(batches, 10)
        same(train_alone(optimizers.Adagrad(0.1), build), hybrid.export().get_weights(), 2e-6)


@child_test
def a_16_bit_wire_has_small_errors_and_deduplication_none():
    want = train_alone(optimizers.SGD(0.1))
    for wire, tolerance in (("bfloat16", 5e-3), ("float16", 1e-3)):
        hybrid = trainer(optimizers.SGD(0.1), wire_dtype=wire)
        hybrid.fit(batches, 10)
        same(want, hybrid.export().get_weights(), tolerance)
    few = [
        ((tf.RaggedTensor.from_row_splits(i.flat_values % 5, i.row_splits), v), y)
        for (i, v), y in whole_batches()
    ]
    results = []
    for deduplicate in (True, False):
        hybrid = trainer(optimizers.SGD(0.1), deduplicate=deduplicate, partition_axis="row")
        hybrid.fit(lambda _: few, 10)
        results.append(hybrid.export().get_weights())
    same(*results, 2e-6)


@child_test
def evaluation_equals_that_of_the_exported_model():
    hybrid = trainer(optimizers.Adagrad(0.1))
    hybrid.fit(batches, 5)
    got = hybrid.evaluate(whole_batches(), [tf.keras.metrics.AUC(name="auc")])
    plain = hybrid.export()
    scores = np.concatenate([np.asarray(plain(x)) for x, _ in whole_batches()])
    labels = np.concatenate([y for _, y in whole_batches()])
    auc = tf.keras.metrics.AUC()
    auc.update_state(labels, scores)
    np.testing.assert_allclose(got["auc"], float(auc.result()), rtol=1e-5)
    loss = tf.keras.losses.BinaryCrossentropy()(labels, scores)
    np.testing.assert_allclose(got["loss"], float(loss), rtol=1e-5)


@child_test
def a_checkpoint_is_restored_on_another_number_of_servers_and_the_other_axis():
    want = train_alone(optimizers.RowWiseAdagrad(0.1), steps=8)
    with tempfile.TemporaryDirectory() as folder:
        for servers, axis, steps in ((2, "row", 4), (3, "row", 5), (1, "row", 6), (2, "column", 7)):
            options = {"partition_axis": axis, "checkpoint_dir": folder, "checkpoint_every": 100}
            hybrid = trainer(optimizers.RowWiseAdagrad(0.1), servers, **options)
            result = hybrid.fit(batches, steps)
            assert result.step == steps
            assert result.own_steps == (4 if steps == 4 else 1)
        hybrid = trainer(optimizers.RowWiseAdagrad(0.1), 3, partition_axis="row", **{
            "checkpoint_dir": folder, "checkpoint_every": 100})  # fmt: skip
        hybrid.fit(batches, 8)
        # A step by column has an accumulator for each half of a row.
        same(want, hybrid.export().get_weights(), 2e-2)
        assert len(os.listdir(folder)) == checkpoints.MAX_TO_KEEP


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
            found = shards_checkpoints(Path(folder))
            assert found[-1].step == 5
            assert (found[-1].base is None) == (policy == "full")
            found[-1].verify()
            damage(next(Path(found[-1].path).glob("server-0*data*")))
            expect_error(ValueError, "damaged", found[-1].verify)
    for mine, full in zip(weights["consecutive"], weights["full"], strict=True):
        np.testing.assert_array_equal(mine, full)


@child_test
def checkpoints_that_others_need_are_kept():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "checkpoint_every": 1}
        hybrid = trainer(optimizers.Adagrad(0.1), checkpoint_policy="one-shot", **options)
        hybrid.fit(lambda _: whole_batches(), 4)
        found = shards_checkpoints(Path(folder))
        assert [each.step for each in found] == [1, 3, 4]
        assert [each.base for each in found] == [None, found[0].name, found[0].name]
        shutil.rmtree(found[0].path)
        hybrid.save()  # its base is gone, so it has all rows
        newest = shards_checkpoints(Path(folder))[-1]
        assert newest.base is None
        newest.verify()
        expect_error(ValueError, "damaged", found[-1].verify)
        listed = checkpoint_list.table(Path(folder)).splitlines()[1:]
        assert [line.split()[0] for line in listed] == [found[-1].name, newest.name]
        wrong = dict(checkpoint_list.problems(Path(folder)))
        assert "No such file" in wrong[found[-1].name]
        assert wrong[newest.name] is None


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@child_test
def a_checkpoint_without_manifest_is_ignored():
    with tempfile.TemporaryDirectory() as folder:
        hybrid = trainer(optimizers.SGD(0.1), checkpoint_dir=folder, checkpoint_every=3)
        hybrid.fit(batches, 3)
        good = checkpoints.latest(folder)
        os.makedirs(os.path.join(folder, "ckpt-000000000009-1"))
        assert checkpoints.latest(folder) == good
        manifest = Path(good) / MANIFEST
        text = manifest.read_text()
        for part in (0, 1, len(text) // 2, len(text) - 1):
            manifest.write_text(text[:part])
            assert checkpoints.latest(folder) is None
        manifest.write_text(text)
        assert checkpoints.latest(folder) == good
        manifest.unlink()
        assert checkpoints.latest(folder) is None


@contextlib.contextmanager
def small_files():
    """No file can have more than 100 bytes; the error is that of a full disk."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@child_test
def a_checkpoint_that_cannot_be_written_is_a_warning_and_its_rows_come_again():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "checkpoint_every": 2, "partition_axis": "row"}
        hybrid = trainer(optimizers.Adagrad(0.1), checkpoint_policy="consecutive", **options)
        hybrid.fit(batches, 2)
        hybrid.fit(lambda _: whole_batches()[2:], 3)
        with small_files(), pytest.warns(RuntimeWarning, match="step 4 cannot be written.*large"):
            hybrid.fit(lambda _: whole_batches()[3:], 5, on_step=None)
        steps = [each.step for each in shards_checkpoints(Path(folder))]
        assert steps == [2, 3]
        assert len(os.listdir(folder)) == 2
        hybrid.fit(lambda _: whole_batches()[5:], 6)
        newest = shards_checkpoints(Path(folder))[-1]
        assert newest.base is not None
        again = trainer(optimizers.Adagrad(0.1), **options)
        again.fit(batches, 6)
        same(hybrid.export().get_weights(), again.export().get_weights())


@child_test
def the_manifest_is_written_after_all_files():
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        rename, found = tf.io.gfile.rename, []

        def finish(part, manifest):
            found.append(sorted(f for f in os.listdir(os.path.dirname(part)) if "index" in f))
            rename(part, manifest)

        patch.setattr(tf.io.gfile, "rename", finish)
        hybrid = trainer(optimizers.SGD(0.1), 2, wide_model, checkpoint_dir=folder)
        hybrid.fit(batches, 1)
        assert found == [["dense.index", "server-0-of-2.index", "server-1-of-2.index"]]


def wide_model():
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    hidden = layers.SparseLinear(256, 100_000)(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))


@child_test
def a_checkpoint_of_another_model_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        trainer(optimizers.SGD(0.1), checkpoint_dir=folder).fit(batches, 1)
        expect_error(
            ValueError, "another model",
            lambda: trainer(optimizers.Adagrad(0.1), checkpoint_dir=folder).fit(batches, 2),
        )  # fmt: skip


def train_with_stale_tables(optimizer, steps):
    """Trains with products of the table before the last update, computed in a simple way."""
    model = builder()
    optimizer.build(model.trainable_variables)
    table = tf_variable(model.get_layer("table").kernels[0])
    seen = table.numpy()
    for x, y in (whole_batches() * 2)[:steps]:
        now = table.numpy()
        table.assign(seen)
        with tf.GradientTape() as tape:
            loss = tf.keras.losses.BinaryCrossentropy()(y, model(x, training=True))
        gradients = tape.gradient(loss, [tf_variable(v) for v in model.trainable_variables])
        table.assign(now)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen = now
    return model.get_weights()


@child_test
def a_pipeline_uses_tables_that_are_one_update_old():
    for axis, make in (
        ("row", lambda: optimizers.SGD(0.5)),
        # Adam would amplify differences in the last bits.
        ("column", lambda: optimizers.Adagrad(0.1)),
    ):
        hybrid = trainer(make(), partition_axis=axis, pipeline=True)
        assert hybrid.fit(batches, 10).step == 10
        same(train_with_stale_tables(make(), 10), hybrid.export().get_weights(), 2e-6)


@child_test
def stored_messages_are_read_before_they_are_overwritten():
    hybrid = trainer(optimizers.SGD(0.1), partition_axis="row", pipeline=True)
    hybrid.fit(batches, 2)
    first, second = whole_batches()[:2]
    step = tf.function(hybrid._graph.train, autograph=False)
    ahead = hybrid._prefetch(first[0])
    number = tf.constant(2, tf.int64)
    graph = step.get_concrete_function(number, *first, None, ahead, second[0]).graph
    writes = [op for op in graph.get_operations() if op.type == "AssignVariableOp"]
    stores = [op for op in writes if "/job:ps/" in op.device]
    assert len(stores) == 2  # a message for each server
    for write in stores:
        before = [op.inputs[0] for op in write.control_inputs if op.type == "ReadVariableOp"]
        assert any(handle is write.inputs[0] for handle in before)


@child_test
def each_fit_and_each_restore_starts_a_new_pipeline():
    few = whole_batches()[:3]
    with tempfile.TemporaryDirectory() as folder:
        options = {"pipeline": True, "partition_axis": "row", "checkpoint_dir": folder}
        first = trainer(optimizers.Adagrad(0.1), **options)
        assert first.fit(lambda _: few, 5).own_steps == 5
        second = trainer(optimizers.Adagrad(0.1), 3, **options)
        assert second.fit(lambda _: few, 5).own_steps == 0
        assert second.fit(lambda _: few, 9).own_steps == 4
        assert first.fit(lambda _: few, 9).own_steps == 4
        same(first.export().get_weights(), second.export().get_weights(), 2e-6)


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
        found = whole_batches()
        return Rest(found[first_batch % len(found) :], found)

    for dataset_fn in (batches, seekable):
        weights = []
        for stops in ((11,), (3, 4, 9, 11)):
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
        same(*weights)


class Rest:
    """A dataset whose first iteration is the rest of one."""

    def __init__(self, first, others):
        self._next, self._others = first, others

    def __iter__(self):
        found, self._next = self._next, self._others
        return iter(found)


@child_test
def every_call_of_fit_begins_with_its_first_batch():
    one = trainer(optimizers.SGD(0.1), partition_axis="row")
    one.fit(batches, 3)
    one.fit(lambda _: whole_batches()[5:], 5)
    with tempfile.TemporaryDirectory() as folder:
        for until in (4, 5):
            again = trainer(optimizers.SGD(0.1), partition_axis="row", checkpoint_dir=folder)
            again.fit(batches, 3)
            again.fit(lambda _: whole_batches()[5:], until)
        assert again.state.step.numpy() == 5
    same(one.export().get_weights(), again.export().get_weights())


@child_test
def a_pipeline_refuses_state_before_a_table():
    hybrid = trainer(
        optimizers.SGD(0.1), build=lambda: builder(norm=True), pipeline=True, partition_axis="row"
    )
    expect_error(ValueError, "pipeline=True needs a model", lambda: hybrid.fit(batches, 2))


@child_test
def invalid_arguments_are_named():
    for argument, value in (
        ("mode", "fast"), ("partition_axis", "diagonal"), ("wire_dtype", "int8"),
        ("max_staleness", 1), ("checkpoint_every", 0), ("timeout", 0),
    ):  # fmt: skip
        make = lambda a=argument, v=value: trainer(optimizers.SGD(0.1), **{a: v})  # noqa: E731
        expect_error(ValueError, argument, make)
    expect_error(ValueError, "optimizer", lambda: trainer(tf.keras.optimizers.SGD(0.1)))
    clipped = optimizers.SGD(0.1, global_clipnorm=1.0)
    expect_error(ValueError, "global_clipnorm", lambda: trainer(clipped))
    expect_error(ValueError, "use_ema", lambda: trainer(optimizers.SGD(0.1, use_ema=True)))


@child_test
def an_invalid_id_is_an_error_that_changes_no_weights():
    hybrid = trainer(optimizers.SGD(0.1), partition_axis="row")
    hybrid.fit(batches, 1)
    before = hybrid.export().get_weights()
    (ids, values), y = whole_batches()[0]
    bad = ids.with_flat_values(ids.flat_values + 2**40)
    expect_error(
        tf.errors.InvalidArgumentError, "ids", lambda: hybrid.fit(lambda _: [((bad, values), y)], 2)
    )
    same(before, hybrid.export().get_weights())


@child_test
def models_may_have_several_tables_and_optimizers():
    def build():
        tf.keras.utils.set_random_seed(5)
        inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
        parts = [layers.SparseLinear(4, 300, name=n)(inputs) for n in ("wide", "deep")]
        joined = tf.keras.layers.Concatenate()(parts)
        out = tf.keras.layers.Dense(1, activation="sigmoid")(joined)
        return tf.keras.Model(inputs, out)

    def make():
        return optimizers.CompositeOptimizer(
            optimizers.Adagrad(0.1), {"wide": optimizers.Ftrl(0.1)}
        )

    hybrid = trainer(make(), build=build, partition_axis="column")
    hybrid.fit(batches, 10)
    same(train_alone(make(), build), hybrid.export().get_weights(), 1e-6)


GROUP = {"user": layers.SparseTable(300, 4), "ad": layers.SparseTable(300, 6, "he_normal")}
FEATURES = {"user": "user", "shown": "ad", "clicked": "ad"}  # two uses of one table


def grouped_model():
    """Tables of one layer: one is used with values, the other with and without."""
    tf.keras.utils.set_random_seed(7)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    group = layers.GroupedSparseLinear(GROUP, FEATURES, name="ads")
    found = group({"user": inputs, "shown": inputs[0], "clicked": inputs})
    joined = tf.keras.layers.Concatenate()([found[f] for f in FEATURES])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(joined))


def optimizer_by_table():
    by_table = {"^ads/user": optimizers.Ftrl(0.1), "^ads/ad": optimizers.LazyAdam(0.01)}
    return optimizers.CompositeOptimizer(optimizers.Adagrad(0.1), by_table)


@child_test
def grouped_tables_equal_those_of_a_single_process():
    want = train_alone(optimizer_by_table(), grouped_model)
    for axis, servers in (("column", 2), ("row", 3)):
        hybrid = trainer(optimizer_by_table(), servers, grouped_model, partition_axis=axis)
        hybrid.fit(batches, 10)
        assert [t.name for t in hybrid.placement.tables] == ["0/ads/user", "1/ads/ad"]
        assert not any("ads" in v.name for v in hybrid.state.dense_weights)
        same(want, hybrid.export().get_weights(), 2e-5)


@child_test
def grouped_tables_are_restored_on_other_servers_and_saved_in_files():
    want = train_alone(optimizer_by_table(), grouped_model, steps=6)
    with tempfile.TemporaryDirectory() as folder:
        for servers, axis, steps in ((2, "row", 4), (3, "row", 5), (2, "column", 6)):
            options = {"partition_axis": axis, "checkpoint_dir": folder}
            hybrid = trainer(optimizer_by_table(), servers, grouped_model, **options)
            result = hybrid.fit(batches, steps)
            assert result.own_steps in (4, 1)
        path = os.path.join(folder, "model.keras")
        same(want, hybrid.export(path).get_weights(), 2e-6)
        again = tf.keras.models.load_model(path, compile=False)
        x, _ = whole_batches()[0]
        np.testing.assert_allclose(again(x), hybrid.export()(x), rtol=1e-6)


def adapted_model(calls):
    """A model with a layer that adapts to data while it is built. Records the call in `calls`."""
    calls.append("built")
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    buckets = layers.PercentileDiscretizer(4, unknown="drop")
    signature = tuple(tf.RaggedTensorSpec([None, None], t, 1) for t in (tf.int64, tf.float32))
    data = tf.data.Dataset.from_generator(
        lambda: (x for x, _ in whole_batches()), output_signature=signature
    )
    buckets.adapt(data)
    hidden = layers.SparseLinear(8, buckets.output_dim, activation="relu")(buckets(inputs))
    hidden = tf.keras.layers.Concatenate()([hidden, layers.SparseLinear(2, ROWS)(inputs)])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


@child_test
def a_chief_built_model_is_built_once_and_equal_in_all_processes():
    calls = []
    want = trainer(
        optimizers.Adagrad(0.1), build=lambda: adapted_model([]), partition_axis="column"
    )
    want.fit(batches, 10)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run", "model.keras")
        chief = ChiefBuiltModel(lambda: adapted_model(calls), path, first_servers(2))
        assert chief.count_params() == adapted_model([]).count_params()
        hybrid = trainer(optimizers.Adagrad(0.1), build=chief, partition_axis="column")
        hybrid.fit(batches, 10)
        same(want.export().get_weights(), hybrid.export().get_weights(), 2e-6)
        other = ConnectedCluster(SERVERS[:2], [WORKER, "another:1"], "worker", 1)
        for cluster in (first_servers(2), other):
            read = ChiefBuiltModel(lambda: adapted_model(calls), path, cluster)
            assert read.count_params() == chief.count_params()
            x, _ = whole_batches()[0]
            for model, again in ((chief(), read()), (chief(), chief())):
                np.testing.assert_array_equal(
                    *(m.layers[2](x)[0].flat_values for m in (model, again))
                )
                same(*([w for w in m.get_weights() if w.ndim == 1] for m in (model, again)))
        assert calls == ["built"]


@child_test
def waiting_for_a_model_without_a_chief_times_out():
    with tempfile.TemporaryDirectory() as folder:
        other = ConnectedCluster(SERVERS[:2], [WORKER, "another:1"], "worker", 1)
        path = os.path.join(folder, "model.keras")
        expect_error(
            ClusterError, "no chief", lambda: ChiefBuiltModel(builder, path, other, timeout=0.3)
        )
        with pytest.raises(KeyError), heartbeat(f"{path}.beat", 0.01):
            raise KeyError  # the chief ends, its heartbeat file remains
        expect_error(
            ClusterError, "no chief", lambda: ChiefBuiltModel(builder, path, other, timeout=0.3)
        )


@child_test
def iter_checkpoints_yields_each_checkpoint_as_an_ordinary_model():
    with tempfile.TemporaryDirectory() as folder:
        options = {"partition_axis": "row", "checkpoint_dir": folder, "checkpoint_every": 4}
        hybrid = trainer(optimizers.LazyAdam(0.1), 3, grouped_model, **options)
        found = iter_checkpoints(grouped_model, folder, 8)
        for steps in (4, 8):
            hybrid.fit(batches, steps)
            step, model = next(found)
            assert step == steps
            same(hybrid.export().get_weights(), model.get_weights())
        assert next(found, None) is None
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


def expect_error(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


if __name__ == "__main__":
    running = [start_server(Cluster(SERVERS, job="ps", index=i)) for i in range(3)]
    Cluster(SERVERS, [WORKER]).connect(120)
    serve_requests(child_test.run)
