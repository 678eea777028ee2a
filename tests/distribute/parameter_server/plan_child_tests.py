"""Tests of tables that a plan divides, run by test_one_process.py in a child process."""

import json
import os
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.model import (
    ROWS,
    assert_close_by_way,
    batches,
    builder,
    dynamic_model,
    id_batches,
    model_of_tables,
    names_of_tables,
    optimizer_of_tables,
    plan_of_tables,
    same,
    whole_batches,
)
from tests.distribute.parameter_server.trainers import (
    SERVERS,
    TWO_WORKERS,
    SecondWorker,
    check_snapshots,
    child_test,
    expect_error,
    export_with_slots,
    grouped_model,
    plan_of,
    train_alone,
    trainer,
    weights_of_snapshots,
)
from twml_ops import layers, optimizers
from twml_ops.distribute.parameter_server import SavedSlots, iter_checkpoints


@child_test
def each_way_with_each_optimizer_equals_a_single_process():
    names = names_of_tables(["table", "row", "column", "column-row", "replicated"])
    build, plan = partial(model_of_tables, names), plan_of_tables(names, 4)
    hybrid = trainer(optimizer_of_tables(names), 4, build, "mse", plan=plan)
    hybrid.fit(batches, 4)
    want = train_alone(optimizer_of_tables(names), build, 4, "mse")
    assert_close_by_way(names, want, hybrid.export().get_weights())
    on_servers = [place for place in plan.tables if place.way != "replicated"]
    for table, place in zip(hybrid.placement.tables, on_servers, strict=True):
        assert [s.device for s in table.shards] == [
            hybrid.cluster.devices[i] for i in place.servers(4)
        ]


@child_test
def slots_go_from_one_plan_to_another_one_unchanged():
    names = names_of_tables(["table", "row", "column-row", "replicated"], ["rowwise", "adam"])
    build, make = partial(model_of_tables, names), partial(optimizer_of_tables, names)
    by_row = [("row", i % 4) for i in range(len(names))]
    found, saved = [], None
    for plan in (plan_of_tables(names, 4), plan_of(4, *by_row)):
        hybrid = trainer(make(), 4, build, "mse", plan=plan, saved_slots=saved)
        hybrid.fit(batches, 0 if found else 2)
        model, slots = export_with_slots(hybrid, make())
        found.append(slots)
        saved = SavedSlots(2, lambda model=model: model)
    same(*found)


@child_test
def a_server_without_a_part_of_any_table_has_no_op_of_the_tables():
    hybrid = trainer(
        optimizers.Adagrad(0.1), 3, grouped_model, plan=plan_of(3, *[("table", 1)] * 2)
    )
    hybrid.fit(batches, 2)
    (step,) = hybrid._train.traced.values()
    graph = step.graph
    own = hybrid.cluster.devices
    used = {d: {op.type for op in graph.get_operations() if op.device == d} for d in own}
    assert not any("Twml" in op for op in used[own[0]] | used[own[2]])
    assert any("Twml" in op for op in used[own[1]])
    assert not used[own[2]]
    same(
        train_alone(optimizers.Adagrad(0.1), grouped_model, 2), hybrid.export().get_weights(), 2e-6
    )


@child_test
def a_mixed_plan_gives_the_same_training_with_any_other_option():
    plan = plan_of(4, ("table", 2), ("row", 3))
    for options in (
        {"exchange_every": 2, "pipeline": True},
        {"steps_per_execution": 2, "wire_dtype": "float16"},
        {"mode": "hogwild", "deduplicate": False},
    ):
        found = []
        for more in ({"servers": 1}, {"servers": 4, "plan": plan}):
            hybrid = trainer(optimizers.LazyAdam(0.01), build=grouped_model, **options, **more)
            hybrid.fit(batches, 6)
            found.append(hybrid.export().get_weights())
        same(*found, 2e-3 if "wire_dtype" in options else 2e-5)


@child_test
def dense_weights_are_on_servers_without_tables():
    found = []
    for more in ({"plan": plan_of(2, ("table", 1))}, {"partition_axis": "column"}):
        hybrid = trainer(optimizers.Adagrad(0.1), cluster=TWO_WORKERS, mode="async", **more)
        hybrid.fit(batches, 6)
        found.append(hybrid.export().get_weights())
    same(*found, 2e-6)


@child_test
def layers_in_front_of_a_planned_table_get_gradients():
    build, make = partial(builder, norm=True), partial(optimizers.Adagrad, 0.1)
    want = train_alone(make(), build, 4)
    for place in (("table", 3), ("column-row", 1)):
        hybrid = trainer(make(), 4, build, plan=plan_of(4, place))
        hybrid.fit(batches, 4)
        same(want, hybrid.export().get_weights(), 2e-5)


@child_test
def rows_of_ids_are_the_ones_of_a_single_process_in_a_planned_table():
    want = train_alone(optimizers.Adagrad(0.1), dynamic_model, 8, batches=id_batches())
    for place in (("table", 1), ("column-row", 2)):
        hybrid = trainer(optimizers.Adagrad(0.1), 4, dynamic_model, plan=plan_of(4, place))
        hybrid.fit(lambda _: id_batches(), 8)
        same(want, hybrid.export().get_weights(), 2e-5)


@child_test
def a_checkpoint_of_a_plan_is_restored_with_another_plan_on_other_servers():
    """With the average of weights that was begun, and also from rows that changed."""
    ways = ["table", "row", "column", "column-row"]
    names = ["user_adagrad", "ad_adam"]
    build, make = partial(model_of_tables, names), partial(optimizer_of_tables, names)
    want = train_alone(make(), build, 6, "mse")
    parts = ((4, 2, (1, 2)), (4, 3, (3,)), (2, 0, (4,)), (4, 1, (5, 6)))
    for policy in ("full", "consecutive"):
        with tempfile.TemporaryDirectory() as folder:
            seen = []
            for servers, first, steps in parts:
                places = [(way if servers == 4 else "table", i % servers) for i, way in enumerate(
                    (ways[first], ways[first - 1]), first)]  # fmt: skip
                hybrid = trainer(
                    make(),
                    servers,
                    build,
                    "mse",
                    plan=plan_of(servers, *places),
                    checkpoint_dir=folder,
                    checkpoint_policy=policy,
                )
                seen += weights_of_snapshots(hybrid, steps)
            same(want, seen[-1], 2e-5)
            check_snapshots(hybrid, seen, build, folder, until=6)


@child_test
def small_tables_on_the_worker_train_as_in_a_single_process():
    """Two of four tables, or all of them, so that the servers have none."""
    names = names_of_tables(["table"])  # by turns with 300 and 75 rows
    build, make = partial(model_of_tables, names), partial(optimizer_of_tables, names)
    want = train_alone(make(), build, 6, "mse")
    for rows, on_servers, options in (
        (75, 2, {}),
        (ROWS, 0, {}),
        (75, 2, {"exchange_every": 2, "pipeline": True}),
        (ROWS, 0, {"exchange_every": 2, "pipeline": True, "steps_per_execution": 4}),
    ):
        hybrid = trainer(make(), 2, build, "mse", replicated_rows=rows, **options)
        hybrid.fit(batches, 6)
        assert len(hybrid.placement.tables) == on_servers
        for i, (a, b) in enumerate(zip(want, hybrid.export().get_weights(), strict=True)):
            is_copied = a.shape[0] <= rows
            if is_copied:
                np.testing.assert_array_equal(b, a, err_msg=names[i])
            elif not options:  # else the products on servers are of older rows
                np.testing.assert_allclose(b, a, rtol=2e-6, atol=2e-6, err_msg=names[i])


@child_test
def a_run_goes_on_with_its_small_tables_on_the_worker_and_not_with_others():
    names = names_of_tables(["table"])
    build, make = partial(model_of_tables, names), partial(optimizer_of_tables, names)
    want = train_alone(make(), build, 6, "mse")
    for rows in (75, ROWS):
        with tempfile.TemporaryDirectory() as folder:
            for steps in (3, 6):
                hybrid = trainer(
                    make(), 2, build, "mse", replicated_rows=rows, checkpoint_dir=folder
                )
                hybrid.fit(batches, steps)
            same(want, hybrid.export().get_weights(), 0 if rows == ROWS else 2e-6)
            built = []

            def build_and_keep(built=built):
                built.append(build())
                return built[-1]

            ((step, plain),) = iter_checkpoints(build_and_keep, folder, until=6)
            assert step == 6
            assert plain is built[-1]  # which a caller may have kept, as the evaluator does
            same(hybrid.export().get_weights(), plain.get_weights())
            other = trainer(make(), 2, build, "mse", checkpoint_dir=folder)
            fit = partial(other.fit, batches, 7)
            expect_error(ValueError, "had other tables on the servers", fit)


@child_test
def a_checkpoint_in_which_another_table_of_the_same_shape_was_replicated_is_refused():
    def build():
        inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
        tables = [layers.SparseLinear(4, ROWS, use_bias=False, name=name) for name in "ab"]
        return tf.keras.Model(inputs, tf.keras.layers.Add()([table(inputs) for table in tables]))

    with tempfile.TemporaryDirectory() as folder:
        places = [("row", 0), ("replicated", 0)]
        first, other = (
            trainer(optimizers.SGD(0.1), 2, build, "mse", plan=plan, checkpoint_dir=folder)
            for plan in (plan_of(2, *places), plan_of(2, *reversed(places)))
        )
        first.fit(batches, 1)
        fit = partial(other.fit, batches, 2)
        expect_error(ValueError, "had other tables on the servers", fit)


@child_test
def a_worker_with_other_tables_on_the_servers_than_the_chief_is_refused():
    build, make, batch = grouped_model, partial(optimizers.SGD, 0.1), whole_batches()[0]
    plans = [plan_of(2, ("row", 0), ("replicated", 0)), plan_of(2, ("replicated", 0), ("row", 0))]
    options = {"cluster": TWO_WORKERS, "mode": "async", "name": "other tables"}
    trainer(make(), 2, build, plan=plans[0], **options).build(batch)
    second = SecondWorker(SERVERS[:2], TWO_WORKERS.workers, "worker", 1)
    for other in ({"plan": plans[1]}, {"replicated_rows": 0}, {"replicated_rows": 300}):
        worker = trainer(make(), 2, build, **{**options, "cluster": second, **other})
        expect_error(ValueError, "must be equal in all processes", lambda w=worker: w.build(batch))


@child_test
def tables_with_the_rows_of_ids_are_on_servers():
    hybrid = trainer(optimizers.Adagrad(0.1), 2, dynamic_model, replicated_rows=1000)
    hybrid.fit(lambda _: id_batches(), 8)
    assert [table.path for table in hybrid.placement.tables] == hybrid.placement.paths
    want = train_alone(optimizers.Adagrad(0.1), dynamic_model, 8, batches=id_batches())
    same(want, hybrid.export().get_weights(), 2e-5)
    copied = trainer(optimizers.Adagrad(0.1), 2, dynamic_model, plan=plan_of(2, ("replicated", 0)))
    expect_error(ValueError, "must not be copies", lambda: copied.fit(lambda _: id_batches(), 1))


@child_test
def a_plan_that_does_not_fit_is_refused_before_the_training():
    def fit(plan, servers=2):
        trainer(optimizers.SGD(0.1), servers, grouped_model, plan=plan).fit(batches, 1)

    table = ("table", 0)
    for message, plan in (
        (
            "expected a plan for the 2 servers of the cluster, got one for 3",
            plan_of(3, table, table),
        ),
        ("expected 2 tables as the model has, ads/user, ads/ad; got 1", plan_of(2, table)),
        ("ads/ad: column-row needs 4 servers", plan_of(2, table, ("column-row", 0))),
    ):
        expect_error(ValueError, message, lambda plan=plan: fit(plan))
    expect_error(ValueError, "ads/ad has 300 x 6 numbers, .* a multiple of 4 columns",
        lambda: fit(plan_of(4, table, ("column", 0)), 4))  # fmt: skip
    expect_error(ValueError, 'partition_axis must be "auto" beside a plan', lambda: trainer(
        optimizers.SGD(0.1), partition_axis="row", plan=plan_of(2, table)))  # fmt: skip


@child_test
def the_file_of_a_plan_names_the_tables_in_any_order():
    plan, make = plan_of(2, ("table", 1), ("row", 0)), partial(optimizers.SGD, 0.1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        path.write_text(json.dumps(plan.to_json(["ads/ad", "ads/user"])))
        hybrid = trainer(make(), 2, grouped_model, plan=os.fspath(path))
        hybrid.fit(batches, 1)
        places = {t.path: t.division.place for t in hybrid.placement.tables}
        assert places == dict(zip(["ads/ad", "ads/user"], plan.tables, strict=True))
        path.write_text(json.dumps(plan.to_json(["ads/ad", "ads/add"])))
        hybrid = trainer(make(), 2, grouped_model, plan=path)
        names = "expected the tables of the model, ads/ad, ads/user; got ads/ad, ads/add"
        expect_error(ValueError, names, lambda: hybrid.fit(batches, 1))
        path.write_text('{"tables": []}')
        expect_error(ValueError, "is no plan of", lambda: trainer(make(), plan=path))
        expect_error(
            FileNotFoundError, "none.json", lambda: trainer(make(), plan=Path(folder, "none.json"))
        )


@child_test
def a_pattern_of_a_composite_optimizer_that_matches_a_table_on_a_server_is_not_warned_of():
    names = names_of_tables(["table"])
    build = partial(model_of_tables, names)
    for rules, unmatched in ((names, []), ([*names, "none_sgd"], ["^tables/none_sgd"])):
        hybrid = trainer(optimizer_of_tables(rules), 2, build, "mse", replicated_rows=75)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            hybrid.fit(batches, 1)
        told = [str(w.message) for w in found if "the first one to match" in str(w.message)]
        assert len(told) == len(unmatched)
        assert all(pattern in text for pattern, text in zip(unmatched, told, strict=True))


@child_test
def a_regularizer_of_a_small_table_is_the_one_of_a_single_process():
    def build(regularizer="l2"):
        tf.keras.utils.set_random_seed(3)
        inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
        linear = layers.SparseLinear(4, ROWS, kernel_regularizer=regularizer, name="table")
        return tf.keras.Model(inputs, linear(inputs))

    make = partial(optimizers.Adagrad, 0.1)
    hybrid = trainer(make(), 2, build, "mse", replicated_rows=ROWS)
    hybrid.fit(batches, 4)
    plain = train_alone(make(), partial(build, None), 4, "mse")
    want, got = train_alone(make(), build, 4, "mse"), hybrid.export().get_weights()
    same(want, got, 1e-6)
    assert not np.allclose(plain[0], got[0], rtol=1e-4, atol=0)
    fit = partial(trainer(make(), 2, build, "mse").fit, batches, 1)
    expect_error(ValueError, "got one on parameter servers", fit)
