"""Tests of tables whose rows are in files of servers, run by test_one_process.py in a child."""

import fcntl
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.model import (
    ROWS,
    batches,
    model_of_tables,
    names_of_tables,
    optimizer_of_tables,
    plan_of_tables,
    same,
)
from tests.distribute.parameter_server.trainers import (
    child_test,
    expect_error,
    field_batches,
    field_model,
    train_alone,
    trainer,
)
from twml_ops import layers, optimizers
from twml_ops.distribute.parameter_server import checkpoint as checkpoints
from twml_ops.distribute.parameter_server.rows_in_files import PartInFile
from twml_ops.distribute.parameter_server.state import RunState
from twml_ops.placement import LargeTables, Tiered, placement_of, placement_scope

CACHE = 96  # the most distinct ids of a batch


def table_only(initializer="glorot_uniform", rows=ROWS):
    """A model in which all ops but ours are elementwise, so that all graphs give the same bits."""
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    options = {"kernel_initializer": initializer, "use_bias": False, "name": "table"}
    return tf.keras.Model(
        inputs, layers.SparseLinear(8, rows, activation="relu", **options)(inputs)
    )


def storage(folder, **options):
    return Tiered(folder, CACHE, **options)


def rows_files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*.rows"))


def parts_in_files(hybrid):
    return [s for t in hybrid.state.tables for s in t.shards if isinstance(s, PartInFile)]


def statistics(part):
    from twml_ops.ops._library import library

    with tf.device(part.device):
        return library.loaded.twml_tiered_statistics(part.handle).numpy()


@child_test
def one_server_with_rows_in_a_file_trains_as_one_process():
    make = partial(optimizers.Adagrad, 0.1)
    with tempfile.TemporaryDirectory() as folder:
        files = storage(folder)
        hybrid = trainer(make(), 1, table_only, "mse", mode="async", storage=files)
        hybrid.fit(batches, 10)
        assert len(rows_files(Path(folder) / "server-0")) == 1
        (part,) = parts_in_files(hybrid)
        assert statistics(part)[5] > 0  # rows were written back
        same(train_alone(make(), table_only, loss="mse"), hybrid.export().get_weights())
        hybrid.release()
        assert rows_files(folder) == []


@child_test
def rows_in_files_of_servers_are_those_in_memory_for_each_division_and_optimizer():
    names = names_of_tables(("row", "column"))
    model, make = partial(model_of_tables, names), partial(optimizer_of_tables, names)
    weights = []
    with tempfile.TemporaryDirectory() as folder:
        for files in (None, storage(folder, policy="lfu")):
            plan = plan_of_tables(names, 2)
            hybrid = trainer(make(), 2, model, "mse", plan=plan, storage=files)
            hybrid.fit(batches, 5)
            weights.append(hybrid.export().get_weights())
        found = {s.name.rpartition("_")[2] for s in parts_in_files(hybrid)}
        assert found == {"sgd", "rowwise", "adam"}
        assert len(parts_in_files(hybrid)) == 8  # of 14: the others have fewer rows than the cache
    same(*weights)


@child_test
def vectors_of_fields_in_files_are_those_of_one_process():
    build, make = partial(field_model, units=4), partial(optimizers.LazyAdam, 0.05)
    with tempfile.TemporaryDirectory() as folder:
        options = {"partition_axis": "row", "storage": Tiered(folder, 48)}
        hybrid = trainer(make(), 2, build, **options)
        hybrid.fit(lambda _: field_batches(), 5)
        assert len(parts_in_files(hybrid)) == 2
        want = train_alone(make(), build, 5, batches=field_batches())
        same(want, hybrid.export().get_weights(), 2e-5)


@child_test
def checkpoints_are_the_same_whether_rows_are_in_files_or_in_memory():
    """Each training goes on with another place of the rows, policy, or number of servers."""
    make, build = partial(optimizers.RowWiseAdagrad, 0.1), partial(table_only, rows=150_001)
    with tempfile.TemporaryDirectory() as folder:
        options = {"partition_axis": "row", "checkpoint_dir": f"{folder}/c", "checkpoint_every": 1}
        for steps, (servers, in_files, policy) in zip(
            (2, 3, 5, 7, 8),
            (
                (3, True, "full"),
                (2, False, "full"),
                (2, True, "consecutive"),
                (2, True, "consecutive"),  # reads changed rows into files
                (1, True, "full"),
            ),
            strict=True,
        ):
            files = storage(f"{folder}/rows") if in_files else None
            options |= {"checkpoint_policy": policy, "storage": files}
            hybrid = trainer(make(), servers, build, "mse", **options)
            hybrid.fit(batches, steps)
            parts = parts_in_files(hybrid)
            assert len(parts) == (servers if in_files else 0)
            assert all(len(list(part.pieces())) > 1 for part in parts)
            newest = checkpoints.manager_of(options["checkpoint_dir"]).latest()
            assert (newest.manifest.base is None) == (policy == "full")
            newest.verify()
            assert not [p for p in newest.folder.iterdir() if "piece" in p.name]
            if len(parts) == 2:
                whole = hybrid.export().get_weights()
                hybrid.release()
        same(train_alone(make(), build, 8, "mse"), hybrid.export().get_weights(), 2e-6)
        assert (whole[0] != hybrid.export().get_weights()[0]).any()


@child_test
def constant_initial_values_are_those_of_one_process():
    build = partial(table_only, "ones")
    with tempfile.TemporaryDirectory() as folder:
        options = {"partition_axis": "row", "storage": storage(folder)}
        hybrid = trainer(optimizers.SGD(0.1), 2, build, "mse", **options)
        hybrid.fit(batches, 1)
        want = train_alone(optimizers.SGD(0.1), build, 1, "mse")
        same(want, hybrid.export().get_weights(), 2e-7)


def with_slots(hybrid):
    model = hybrid.export()
    model.compile(optimizers.Adagrad(0.1))
    model.optimizer.build(model.trainable_variables)
    hybrid.export_slots(model)
    (kernel,) = model.get_layer("table").kernels
    return kernel, *model.optimizer.slots_of(kernel)


@child_test
def an_exported_model_may_have_its_rows_in_files_too():
    with tempfile.TemporaryDirectory() as folder:
        options = {"partition_axis": "row", "storage": storage(folder)}
        build = partial(table_only, rows=150_001)  # several pieces
        hybrid = trainer(optimizers.Adagrad(0.1), 3, build, "mse", **options)
        hybrid.fit(batches, 3)
        with placement_scope(LargeTables(Tiered(f"{folder}/chief", CACHE))):
            in_files = with_slots(hybrid)
        assert placement_of(in_files[0]).in_file
        place = placement_of(in_files[0])
        for got, want in zip(in_files, with_slots(hybrid), strict=True):
            np.testing.assert_array_equal(place.read(got), want.numpy())


@child_test
def files_of_the_user_stay_and_a_folder_that_cannot_be_used_is_named():
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "server-0"
        own.mkdir()
        options = {"storage": storage(folder), "name": "the_files"}
        hybrid = trainer(optimizers.SGD(0.1), 1, table_only, "mse", **options)
        hybrid.fit(batches, 1)
        (name,) = rows_files(own)
        hybrid.release_files()
        assert rows_files(folder) == []
        assert hybrid.state.marker() == 0
        (own / name).write_text("of the user")
        hybrid = trainer(optimizers.SGD(0.1), 1, table_only, "mse", **options)
        expect_error(
            ValueError, "storage: .*exists and is not a row", lambda: hybrid.fit(batches, 1)
        )
        assert (own / name).read_text() == "of the user"
        with open(own / name, "w") as other:  # of another process
            fcntl.flock(other, fcntl.LOCK_EX)
            hybrid = trainer(optimizers.SGD(0.1), 1, table_only, "mse", **options)
            hybrid.fit(batches, 1)  # also after an error
            assert rows_files(own) == [f"{Path(name).stem}-1.rows", name]
            want = train_alone(optimizers.SGD(0.1), table_only, 1, "mse")
            same(want, hybrid.export().get_weights())
        again = trainer(optimizers.SGD(0.1), 1, table_only, "mse", **options)
        again.fit(batches, 1)  # on the same server, which closes the file that it had
        assert rows_files(own) == [name]
        again.release()
        assert rows_files(own) == []
        options["storage"] = storage(f"{own}/file/rows")
        (own / "file").write_text("")
        hybrid = trainer(optimizers.SGD(0.1), 1, table_only, "mse", **options)
        expect_error(ValueError, "storage: .*folder .*cannot be", lambda: hybrid.fit(batches, 1))


@child_test
def what_files_do_not_allow_is_refused():
    files = storage("never created")
    for options in (
        {"mode": "hogwild", "optimizer": optimizers.SGD(0.1)},
        {"optimizer": optimizers.SGD(0.1, concurrency="hogwild")},
    ):
        expect_error(
            ValueError,
            "storage needs updates with locks",
            lambda options=options: trainer(storage=files, **options),
        )
    with tempfile.TemporaryDirectory() as folder:
        hybrid = trainer(optimizers.SGD(0.1), 1, table_only, "mse", storage=storage(folder))
        hybrid.fit(batches, 1)
        expect_error(ValueError, "weights are averaged in memory", hybrid.take_snapshot)
        (part,) = parts_in_files(hybrid)
        for call in (part.value, lambda: part.assign_add(1.0), lambda: part.assign_sub(1.0)):
            expect_error(ValueError, "has its rows in a file", call)
        small = trainer(optimizers.SGD(0.1), 1, table_only, "mse", storage=Tiered(folder, 16))
        expect_error(tf.errors.InvalidArgumentError, "cache", lambda: small.fit(batches, 1))
    assert not Path("never created").exists()


@child_test
def a_process_that_has_rows_in_other_places_than_the_chief_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        hybrid = trainer(optimizers.SGD(0.1), 2, table_only, "mse", storage=storage(folder))
        hybrid.fit(batches, 1)
        begun = hybrid.state
        args = begun.prefix, hybrid.cluster, begun.tables, hybrid.model, hybrid.optimizer, False
        for files in (None, Tiered(folder, CACHE + 1)):
            expected = f"storage must be equal in all .* expected {CACHE} rows of table/kernel"
            expect_error(ValueError, expected, RunState(*args, storage=files).read_layout)
        assert RunState(*args, storage=storage(folder)).read_layout() == [
            table.division for table in begun.tables
        ]


@child_test
def large_tables_in_files_beside_small_ones_on_the_worker_train_as_one_process():
    names = names_of_tables(["table"])  # by turns with 300 and 75 rows
    build, make = partial(model_of_tables, names), partial(optimizer_of_tables, names)
    with tempfile.TemporaryDirectory() as folder:
        hybrid = trainer(make(), 2, build, "mse", storage=storage(folder), replicated_rows=75)
        hybrid.fit(batches, 6)
        assert len(hybrid.placement.tables) == 2
        assert parts_in_files(hybrid)
        same(train_alone(make(), build, 6, "mse"), hybrid.export().get_weights(), 2e-6)
        hybrid.release()


@child_test
def files_of_servers_that_were_killed_are_removed_by_the_next_run_and_no_others():
    with tempfile.TemporaryDirectory() as folder:
        first = trainer(optimizers.SGD(0.1), 1, table_only, "mse", storage=storage(folder))
        first.fit(batches, 1)
        (used,) = rows_files(folder)
        left, other = (Path(folder, "server-0", name) for name in ("left.rows", "other.rows"))
        left.write_bytes(Path(folder, used).read_bytes())  # which no process has locked
        other.write_bytes(b"rows of another program")
        second = trainer(optimizers.SGD(0.1), 1, table_only, "mse", storage=storage(folder))
        second.fit(batches, 2)
        first.fit(batches, 2, begin=0)
        same(first.export().get_weights(), second.export().get_weights())
        assert not left.exists()
        assert other.exists()
        for hybrid in (first, second):
            hybrid.release_files()
        assert rows_files(folder) == ["server-0/other.rows"]
