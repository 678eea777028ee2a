"""Tests of training with parameter servers, run by test_one_process.py in a child process."""

import os
import tempfile
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from tests.distribute.parameter_server.model import ROWS, batches, builder, same, whole_batches
from tests.distribute.parameter_server.trainers import (
    FIELDS,
    SERVERS,
    TWO_WORKERS,
    WORKER,
    ConnectedCluster,
    child_test,
    expect_error,
    field_batches,
    field_model,
    first_servers,
    grouped_model,
    train_alone,
    trainer,
)
from tests.fixtures import calculations
from twml_ops import layers, optimizers, placement
from twml_ops.distribute.measured_training import repeated
from twml_ops.distribute.parameter_server import (
    ChiefBuiltModel,
    ChiefDecisions,
    ClusterError,
    SavedSlots,
)
from twml_ops.distribute.parameter_server.chief_decisions import heartbeat
from twml_ops.distribute.parameter_server.flat_batches import FlatBatches
from twml_ops.ops._tape import tf_variable


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
def numbers_of_steps_are_the_recorded_ones():
    exact, close = {}, {}
    for axis in ("row", "column"):
        for build, loss, into in (
            (table_only, "mse", exact),
            (builder, "binary_crossentropy", close),
        ):
            hybrid = trainer(optimizers.Adagrad(0.1), 2, build, loss, partition_axis=axis)
            hybrid.fit(batches, 4)
            weights = enumerate(hybrid.export().get_weights())
            into.update({f"{axis} {build.__name__} {i}": w for i, w in weights})
    calculations.check("hybrid", exact, close)


@child_test
def training_by_row_equals_a_single_process_except_for_the_order_of_additions():
    for servers, make in ((2, optimizers.Adagrad), (3, optimizers.RowWiseAdagrad)):
        hybrid = trainer(make(0.1), servers, partition_axis="row")
        hybrid.fit(batches, 10)
        same(train_alone(make(0.1)), hybrid.export().get_weights(), 2e-6)


@child_test
def the_tables_of_fields_are_those_of_a_single_process():
    for servers, options in zip((1, 2, 2), FIELDS.values(), strict=True):
        build = partial(field_model, **options)
        for axis in ("row", "column"):
            make = partial(optimizers.LazyAdam if servers == 1 else optimizers.Adagrad, 0.05)
            hybrid = trainer(make(), servers, build, partition_axis=axis)
            hybrid.fit(lambda _: field_batches(), 10)
            exported = hybrid.export()
            same(train_alone(make(), build, batches=field_batches()), exported.get_weights(), 2e-5)
            moved = build().get_weights()
            assert all((a != b).any() for a, b in zip(moved, exported.get_weights(), strict=True))


def averaged_alone(make, steps):
    model = builder()
    model.compile(make(), "binary_crossentropy", jit_compile=False)
    seen = []
    for x, y in (whole_batches() * 2)[:steps]:
        model.train_on_batch(x, y)
        seen.append(model.get_weights())
    model.set_weights([np.mean(each, axis=0) for each in zip(*seen[2:], strict=True)])
    return model


@child_test
def the_weights_of_servers_are_averaged_as_those_of_a_single_process():
    for cluster in (first_servers(1), first_servers(2)):
        make = partial(optimizers.Adagrad, 0.1)
        hybrid = trainer(make(), cluster=cluster)

        def after(step, loss, hybrid=hybrid):
            if step > 2:
                hybrid.take_snapshot()

        hybrid.fit(batches, 6, after)
        hybrid.wait_for_workers(6)
        hybrid.use_average()
        alone = averaged_alone(make, 6)
        same(alone.get_weights(), hybrid.export().get_weights(), 2e-6)
        # Training goes on from the average, and the next average begins anew.
        hybrid.fit(batches, 7, lambda *_, hybrid=hybrid: hybrid.take_snapshot())
        x, y = whole_batches()[0]  # each call of fit begins with the first batch
        alone.train_on_batch(x, y)
        same(alone.get_weights(), hybrid.export().get_weights(), 2e-6)
        hybrid.use_average()
        same(alone.get_weights(), hybrid.export().get_weights(), 2e-6)


@child_test
def a_released_run_has_no_values_on_the_servers():
    hybrid = trainer(optimizers.Adagrad(0.1))
    hybrid.fit(batches, 1, lambda *_: hybrid.take_snapshot())
    values = [*hybrid.state.variables(), *hybrid.averages.variables()]
    assert all(v.exists() for v in values if "layout" not in v.name)
    hybrid.release()
    assert not any(v.exists() for v in values)
    assert hybrid.state.marker() == 0


@child_test
def a_decision_is_made_once_and_read_by_all_processes():
    with tempfile.TemporaryDirectory() as folder:
        chief, worker = (ChiefDecisions(folder, is_chief, 0.5) for is_chief in (True, False))
        assert worker.get("epochs") is None
        expect_error(
            ClusterError, "no chief has written a heartbeat", lambda: worker.wait("epochs")
        )
        with chief.present():
            assert chief.decide("epochs", lambda: {"stop": True}) == {"stop": True}
            assert chief.decide("epochs", lambda: {"stop": False}) == {"stop": True}
        assert worker.decide("epochs", lambda: {"stop": False}) == {"stop": True}
        assert sorted(os.listdir(folder)) == ["epochs.json"]


@child_test
def layers_before_a_table_get_gradients():
    def build():
        return builder(norm=True)

    for axis in ("row", "column"):
        hybrid = trainer(optimizers.Adagrad(0.1), build=build, partition_axis=axis)
        hybrid.fit(batches, 10)
        same(train_alone(optimizers.Adagrad(0.1), build), hybrid.export().get_weights(), 2e-6)


@child_test
def a_narrow_wire_has_small_errors_and_deduplication_none():
    want = train_alone(optimizers.SGD(0.1))
    for products, gradients, tolerance in (
        *(("bfloat16", None, 5e-3), ("float16", None, 1e-3), ("int8", None, 5e-3)),
        *(("float32", "int8", 3e-3), ("float16", "int8", 3e-3)),
    ):
        options = {"wire_dtype": products, "gradient_wire_dtype": gradients}
        hybrid = trainer(optimizers.SGD(0.1), **options)
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
    part = [tf.keras.Model(m.input, m.layers[-1].input) for m in (hybrid.model, plain)]
    for x, _ in whole_batches():
        np.testing.assert_allclose(hybrid.predict(x), plain(x), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(hybrid.predict(x, part[0]), part[1](x), rtol=1e-5, atol=1e-6)


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


def ops_of_a_leader(workers):
    """The number of ops of a step of worker 0, with two servers and a batch of four tensors."""
    others = [f"another:{i}" for i in range(1, workers)]
    cluster = ConnectedCluster(SERVERS[:2], [WORKER, *others], "worker", 0)
    hybrid = trainer(optimizers.Adagrad(0.1), cluster=cluster, mode="sync", partition_axis="row")
    hybrid.build(whole_batches()[0])
    batch = next(iter(FlatBatches().of(whole_batches())()))
    tensors = [tf.constant(0, tf.int64), *batch.tensors]
    step = hybrid._train._trace([batch.kind], None, None, tensors)
    return len(step.graph.get_operations())


@child_test
def another_synchronous_worker_adds_a_few_ops_to_the_step_of_the_leader():
    with_2, with_3, with_5 = map(ops_of_a_leader, (2, 3, 5))
    assert with_5 - with_3 == 2 * (with_3 - with_2)
    assert with_3 - with_2 <= 20  # 14 now


@child_test
def the_graph_of_a_step_is_traced_once():
    hybrid = trainer(optimizers.SGD(0.1))
    same_shapes = whole_batches()[:1] * 3
    hybrid.fit(lambda _: same_shapes, 3)
    assert len(hybrid._train.traced) == 1
    hybrid.fit(lambda _: repeated(same_shapes), 6)  # a dataset of the same kind, in another call
    assert len(hybrid._train.traced) == 1


@child_test
def stored_messages_are_read_before_they_are_overwritten():
    hybrid = trainer(optimizers.SGD(0.1), partition_axis="row", pipeline=True)
    hybrid.fit(batches, 2)
    first, second = whole_batches()[:2]
    step = tf.function(hybrid._graph.train, autograph=False)
    ahead = hybrid._prefetch([first[0]])
    number = tf.constant(2, tf.int64)
    graph = step.get_concrete_function(number, [(*first, None)], ahead, [second[0]]).graph
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
        ("mode", "fast"), ("partition_axis", "diagonal"), ("wire_dtype", "int4"),
        ("gradient_wire_dtype", "float8"),
        ("max_staleness", 1), ("steps_per_execution", 0), ("checkpoint_every", 0), ("timeout", 0),
    ):  # fmt: skip
        make = lambda a=argument, v=value: trainer(optimizers.SGD(0.1), **{a: v})  # noqa: E731
        expect_error(ValueError, argument, make)
    expect_error(ValueError, "optimizer", lambda: trainer(tf.keras.optimizers.SGD(0.1)))
    excluding = optimizers.SGD(0.1, weight_decay=0.1)
    excluding.exclude_from_weight_decay(var_names=["table"])
    expect_error(ValueError, "exclude_from_weight_decay is not", lambda: trainer(excluding))
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


def trained_model(optimizer, steps):
    model = builder(norm=True)
    model.compile(optimizer, "binary_crossentropy", jit_compile=False)
    for x, y in (whole_batches() * 2)[:steps]:
        model.train_on_batch(x, y)
    return model


def slots_by_weight(model):
    """The slots of each weight, and the number of updates."""
    slots = [np.array(s) for v in model.trainable_variables for s in model.optimizer.slots_of(v)]
    return [*slots, int(tf.convert_to_tensor(model.optimizer.iterations))]


@child_test
def a_run_goes_on_with_the_tables_and_slots_of_an_ordinary_model_and_gives_them_back():
    async_workers = {"cluster": TWO_WORKERS, "mode": "async"}  # of which one trains
    adam = partial(optimizers.LazyAdam, 0.02)
    for make, options in (
        (adam, {"cluster": first_servers(1)}),
        (adam, {"cluster": first_servers(2), "partition_axis": "column"}),
        (partial(optimizers.RowWiseAdagrad, 0.1), {"cluster": first_servers(2)}),
        (adam, {**async_workers, "partition_axis": "row", "storage": True}),
    ):
        options = {"partition_axis": "row", **options}
        first, want = trained_model(make(), 5), trained_model(make(), 13)
        with tempfile.TemporaryDirectory() as folder:
            if options.get("storage"):
                options["storage"] = placement.Tiered(os.path.join(folder, "rows"), 96)
            path = os.path.join(folder, "model.keras")
            # The file of an earlier process of the chief has no tables.
            for _ in range(2):
                chief = ChiefBuiltModel(
                    lambda model=first: model, path, options["cluster"], with_tables=True
                )
            other = ConnectedCluster(SERVERS[:2], [WORKER, "another:1"], "worker", 1)
            read = ChiefBuiltModel(lambda: None, path, other, with_tables=True)
            assert chief.count_params() == read.count_params() == first.count_params()
            saved = SavedSlots(5, lambda model=first: model)
            checkpoints = {"checkpoint_dir": os.path.join(folder, "saved"), "saved_slots": saved}
            options = {**options, **checkpoints, "name": f"from {make} {options['partition_axis']}"}
            run = trainer(make(), build=chief, **options)
            parts = [[*whole_batches()[5:], *whole_batches()[:2]], whole_batches()[2:5]]
            run.fit(lambda _, part=parts[0]: part, 5)
            run.release()  # the servers have lost all, and the checkpoint has the state
            run = trainer(make(), build=chief, **options)
            run.fit(lambda _, part=parts[1]: part, 8, begin=5)
            got = run.export()
            same(want.get_weights(), got.get_weights(), 2e-5)
            got.compile(make())
            got.optimizer.build(got.trainable_variables)
            run.export_slots(got)
            same(slots_by_weight(want), slots_by_weight(got), 2e-5)
            assert slots_by_weight(got)[-1] == 13


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
