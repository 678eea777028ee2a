"""Tables in files whose disk fails: errors are clear, and no row is lost or wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.small_files import small_files
from twml_ops import layers, optimizers
from twml_ops.ops._tape import tf_variable
from twml_ops.placement import placement_of

pytestmark = pytest.mark.one_tf  # files are our own; test_tiered.py trains

N, UNITS, CACHE = 3000, 24, 32
# A write that was running when the file was truncated makes it longer again, with zeros before it.
LOST = (
    "linear_kernel.rows cannot be read: "
    "(the file ends too early|a record is not the one that was written)"
)


def table(folder=None, **options):
    storage = None if folder is None else layers.Tiered(folder, CACHE, **options)
    initializer = tf.keras.initializers.RandomNormal(seed=1)
    layer = layers.SparseLinear(
        UNITS, N, use_bias=False, kernel_initializer=initializer, storage=storage, name="linear"
    )
    layer.build(None)
    return layer


def update(layer, optimizer, begin):
    """Updates 20 neighboring rows."""
    ids = tf.range(begin, begin + 20, dtype=tf.int64)
    rows = tf.ones([20, UNITS]) * tf.cast(ids[:, None] % 7, tf.float32)
    gradient = tf.IndexedSlices(rows, ids, tf.constant([N, UNITS], tf.int64))
    optimizer.apply_gradients([(gradient, layer.kernel)])


def whole(layer):
    return placement_of(layer.kernel).read(layer.kernel).numpy()


modes = pytest.mark.parametrize(
    "options",
    [{}, {"direct": False}, {"io_uring": False}, {"prefetch_rows": 0}],
    ids=["direct", "cached", "calls", "no-prefetch"],
)


def test_a_full_disk_is_an_error_when_the_file_is_created(tmp_path):
    layer = table(tmp_path / "rows")
    ids = tf.constant([[1, 2]])
    with small_files(100_000), pytest.raises(tf.errors.UnknownError) as error:
        layer(ids)
    assert "cannot have the" in str(error.value)
    assert "3000 rows of 96 bytes need: File too large" in str(error.value)
    assert list((tmp_path / "rows").iterdir()) == []
    np.testing.assert_array_equal(layer(ids), table()(ids))  # once there is room


@modes
def test_a_full_disk_while_training_loses_no_row_and_training_goes_on_afterwards(tmp_path, options):
    # The file system has reserved the space, so an error while writing has to be made.
    optimizer, expected_optimizer = optimizers.Adagrad(0.1), optimizers.Adagrad(0.1)
    layer, expected = table(tmp_path, **options), table()
    for begin in range(0, 2000, 20):
        update(layer, optimizer, begin)
        update(expected, expected_optimizer, begin)
    errors = []
    with small_files(4096):
        for begin in range(0, N - 20, 20):
            try:
                update(layer, optimizer, begin)
            except tf.errors.UnknownError as e:
                errors.append(str(e))
                continue
            update(expected, expected_optimizer, begin)
    assert errors
    assert all("cannot be written: File too large" in error for error in errors)
    np.testing.assert_array_equal(whole(layer), whole(expected))
    for begin in range(0, N - 20, 20):
        update(layer, optimizer, begin)
        update(expected, expected_optimizer, begin)
    np.testing.assert_array_equal(whole(layer), whole(expected))


@modes
def test_slots_that_have_no_room_are_an_error_that_changes_nothing(tmp_path, options):
    layer, expected = table(tmp_path, **options), table()
    layer(tf.constant([[1, 2]]))  # the file exists, without slots
    optimizer = optimizers.LazyAdam(0.1)
    with small_files(100_000), pytest.raises(tf.errors.UnknownError, match="cannot have the"):
        update(layer, optimizer, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["linear_kernel.rows"]
    np.testing.assert_array_equal(whole(layer), whole(expected))
    expected_optimizer = optimizers.LazyAdam(0.1)
    update(layer, optimizer, 40)
    update(expected, expected_optimizer, 40)
    np.testing.assert_array_equal(whole(layer), whole(expected))
    assert [path.name for path in tmp_path.iterdir()] == ["linear_kernel.rows"]


@modes
@pytest.mark.parametrize("longer_again", [False, True])
def test_rows_of_a_truncated_file_are_an_error_and_others_are_right(
    tmp_path, options, longer_again
):
    layer, expected = table(tmp_path, **options), table().kernel.numpy()
    layer(tf.constant([[1, 2]]))
    path = tmp_path / "linear_kernel.rows"
    size = path.stat().st_size
    os.truncate(path, 4096)
    if longer_again:  # with zeros, as after a write that the system has lost
        os.truncate(path, size)
    errors, right = [], 0
    for begin in range(0, N, 20):
        ids = tf.range(begin, begin + 20, dtype=tf.int64)
        try:
            rows = layer(tf.reshape(ids, [20, 1]))
        except tf.errors.UnknownError as e:
            errors.append(str(e))
            continue
        np.testing.assert_array_equal(rows, expected[begin : begin + 20])
        right += 1
    assert errors
    assert all(re.search(LOST, error) for error in errors), errors
    if longer_again:
        assert not any("ends too early" in error for error in errors)
    assert right > 0  # the rows that were still in memory
    with pytest.raises(tf.errors.UnknownError, match="cannot be read"):
        whole(layer)


def test_an_error_of_a_row_that_is_read_ahead_is_raised_by_the_step_that_needs_it(tmp_path):
    layer = table(tmp_path)
    layer(tf.constant([[1, 2]]))
    os.truncate(tmp_path / "linear_kernel.rows", 4096)
    layer.prefetch_rows(tf.constant([[100, 101]]))
    layer(tf.constant([[1, 2]]))
    for _ in range(2):
        with pytest.raises(tf.errors.UnknownError, match=LOST):
            layer(tf.constant([[100, 101]]))


def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="folder .*file/rows cannot be created: Not a directory"):
        table(tmp_path / "file" / "rows")(tf.constant([[1]]))
    with pytest.raises(ValueError, match="folder .*file cannot be created: File exists"):
        table(tmp_path / "file")(tf.constant([[1]]))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    if os.geteuid() == 0:  # root may write everywhere but here
        folder, why = Path("/proc/self/fdinfo"), "No such file|Permission"
    else:
        tmp_path.chmod(0o500)
        folder, why = tmp_path, "Permission denied"
    with pytest.raises(
        tf.errors.UnknownError, match=f"linear_kernel.rows cannot be created: .*{why}"
    ):
        table(folder)(tf.constant([[1]]))


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_file_that_another_process_uses_is_left_alone(tmp_path):
    path = tmp_path / "linear_kernel.rows"
    path.write_bytes(b"twml_ops row store 1\n\0")
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "locked\n"
        layer = table(tmp_path)
        layer(tf.constant([[1]]))
        names = sorted(each.name for each in tmp_path.iterdir())
        assert names == ["linear_kernel-1.rows", "linear_kernel.rows"]
        assert path.read_bytes() == b"twml_ops row store 1\n\0"
        p.stdin.close()
        p.wait()
    other = table(tmp_path)
    other(tf.constant([[1]]))  # the process has ended, so the file is used again
    assert sorted(each.name for each in tmp_path.iterdir()) == names


def test_the_variable_of_the_table_is_still_a_cache_after_an_error(tmp_path):
    layer = table(tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="cache_rows of at least 40, got 32"):
        layer(tf.range(40, dtype=tf.int64)[None])
    with pytest.raises(ValueError, match="is the cache of a table"):
        tf_variable(layer.kernel).numpy()
    np.testing.assert_array_equal(whole(layer), whole(table()))
