"""Tests of tables whose rows are in files of servers, run by test_one_process.py in a child."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.model import (
    ROWS,
    assert_close_by_way,
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
    for mode in ("async", "sync"):
        with tempfile.TemporaryDirectory() as folder:
            files = storage(folder)
            hybrid = trainer(make(), 1, table_only, "mse", mode=mode, storage=files)
            hybrid.fit(batches, 10)
            assert len(rows_files(Path(folder) / "server-0")) == 1
            (part,) = parts_in_files(hybrid)
            assert statistics(part)[5] > 0  # rows were written back
            same(train_alone(make(), table_only, loss="mse"), hybrid.export().get_weights())
            hybrid.release()
            assert rows_files(folder) == []


@child_test
def rows_in_files_of_servers_are_those_in_memory_for_every_division_and_optimizer():
    for servers, ways in ((2, ("row", "column", "table")), (4, ("column-row",))):
        names = names_of_tables(ways)
        model, make = partial(model_of_tables, names), partial(optimizer_of_tables, names)
        plan = plan_of_tables(names, servers)
        weights = []
        with tempfile.TemporaryDirectory() as folder:
            for files in (None, storage(folder, policy="lfu")):
                hybrid = trainer(make(), servers, model, "mse", plan=plan, storage=files)
                hybrid.fit(batches, 6)
                weights.append(hybrid.export().get_weights())
            assert len(parts_in_files(hybrid)) >= 8  # and tables that fit into the cache
        same(*weights)
        assert_close_by_way(names, train_alone(make(), model, 6, "mse"), weights[1])


@child_test
def vectors_of_fields_in_files_are_those_in_memory():
    build, make = partial(field_model, units=4), partial(optimizers.LazyAdam, 0.05)
    for axis in ("row", "column"):
        weights = []
        with tempfile.TemporaryDirectory() as folder:
            for files in (None, Tiered(folder, 48 if axis == "row" else 80)):
                hybrid = trainer(make(), 2, build, partition_axis=axis, storage=files)
                hybrid.fit(lambda _: field_batches(), 6)
                weights.append(hybrid.export().get_weights())
            assert parts_in_files(hybrid)
        same(*weights, 2e-6)  # the dense layer is TensorFlow's


@child_test
def checkpoints_are_the_same_whether_rows_are_in_files_or_in_memory():
    """Each process goes on with another place of the rows, number of servers and axis."""
    for policy in ("full", "consecutive"):
        weights = []
        for in_files in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                rows = Path(folder) / "rows"
                for number, (servers, axis) in enumerate(
                    ((2, "row"), (2, "row"), (2, "row"), (1, "column"))
                ):
                    # Files, memory, files.
                    files = storage(rows) if in_files and number != 1 else None
                    hybrid = trainer(
                        optimizers.RowWiseAdagrad(0.1),
                        servers,
                        table_only,
                        "mse",
                        partition_axis=axis,
                        storage=files,
                        checkpoint_dir=f"{folder}/checkpoints",
                        checkpoint_every=1,
                        checkpoint_policy=policy,
                    )
                    assert hybrid.fit(batches, 2 * number + 2).own_steps == 2
                    assert bool(parts_in_files(hybrid)) == (files is not None)
                newest = checkpoints.manager_of(f"{folder}/checkpoints").latest()
                newest.verify()
                assert (newest.manifest.base is None) == (policy == "full")
                assert not [p for p in newest.folder.iterdir() if "piece" in p.name]
                weights.append(hybrid.export().get_weights())
        same(*weights)


@child_test
def a_checkpoint_in_several_pieces_is_one_of_the_whole_table():
    build = partial(table_only, rows=150_001)
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": f"{folder}/c", "partition_axis": "row", "name": "pieces"}
        options["storage"] = storage(folder)
        hybrid = trainer(optimizers.Adagrad(0.1), 2, build, "mse", **options)
        hybrid.fit(batches, 3)
        assert len(list(parts_in_files(hybrid)[0].pieces())) >= 3
        want, files = hybrid.export().get_weights(), rows_files(folder)
        same(train_alone(optimizers.Adagrad(0.1), build, 3, "mse"), want, 2e-6)
        again = trainer(optimizers.Adagrad(0.1), 2, build, "mse", **options)
        assert again.fit(batches, 3).own_steps == 0
        same(want, again.export().get_weights())
        assert len(files) == 2
        assert rows_files(folder) == files  # on the same servers, opened anew
        options["name"] = "while the files are in use"
        other = trainer(optimizers.Adagrad(0.1), 2, build, "mse", **options)
        assert other.fit(batches, 3).own_steps == 0
        same(want, other.export().get_weights())
        assert len(rows_files(folder)) == 4
        again.release()
        other.release()
        assert rows_files(folder) == []


@child_test
def constant_and_random_initial_values_are_those_of_one_process():
    for initializer in ("ones", tf.keras.initializers.RandomNormal(seed=4), "he_uniform"):
        build = partial(table_only, initializer, 150_001)  # several pieces
        with tempfile.TemporaryDirectory() as folder:
            options = {"partition_axis": "row", "storage": storage(folder)}
            hybrid = trainer(optimizers.SGD(0.1), 2, build, "mse", **options)
            hybrid.fit(batches, 1)
            same(
                train_alone(optimizers.SGD(0.1), build, 1, "mse"),
                hybrid.export().get_weights(),
                2e-7,
            )
            hybrid.release()


@child_test
def an_exported_model_may_have_its_rows_in_files_too():
    with tempfile.TemporaryDirectory() as folder:
        files = storage(folder)
        hybrid = trainer(optimizers.Adagrad(0.1), 2, table_only, "mse", storage=files)
        hybrid.fit(batches, 3)
        with placement_scope(LargeTables(Tiered(f"{folder}/chief", CACHE))):
            model = hybrid.export()
        model.compile(optimizers.Adagrad(0.1))
        model.optimizer.build(model.trainable_variables)
        hybrid.export_slots(model)
        (kernel,) = model.get_layer("table").kernels
        place = placement_of(kernel)
        assert place.in_file
        np.testing.assert_array_equal(place.read(kernel), hybrid.export().get_weights()[0])
        (slot,) = model.optimizer.slots_of(kernel)
        whole = trainer(optimizers.Adagrad(0.1), 2, table_only, "mse")
        whole.fit(batches, 3)
        plain = whole.export()
        plain.compile(optimizers.Adagrad(0.1))
        plain.optimizer.build(plain.trainable_variables)
        whole.export_slots(plain)
        (other,) = plain.optimizer.slots_of(plain.get_layer("table").kernels[0])
        np.testing.assert_array_equal(place.read(slot), other.numpy())


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
        (own / name).unlink()
        hybrid = trainer(optimizers.SGD(0.1), 1, table_only, "mse", **options)
        hybrid.fit(batches, 1)  # after the error
        same(train_alone(optimizers.SGD(0.1), table_only, 1, "mse"), hybrid.export().get_weights())
        hybrid.release()
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
