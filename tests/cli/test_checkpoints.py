"""`twml-ops checkpoints`: what it prints and keeps; no kept checkpoint loses its base."""

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from twml_ops import optimizers
from twml_ops.checkpoint import CheckpointManager, TablePolicy
from twml_ops.checkpoint.variables import NamedVariable
from twml_ops.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, ["checkpoints", *map(str, arguments)])


@pytest.fixture
def chain(tmp_path):
    """Four consecutive checkpoints of a table, and the value of its variable."""
    table = tf.Variable(tf.random.stateless_normal([30, 4], [1, 2]))
    optimizer = optimizers.SGD(0.1)
    optimizer.build([table])
    variable = NamedVariable("t", "table", (table,), table="t")
    with CheckpointManager(tmp_path, keep=9, tables=TablePolicy("consecutive")) as manager:
        for step in range(4):
            manager.save(step, [variable], {"step": step})
            manager.wait()
            rows = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([step, 7]))
            if step < 3:
                optimizer.apply_gradients([(rows, table)])
    return tmp_path, table.numpy()


def names(folder):
    return [c.folder.name for c in CheckpointManager(folder).all()]


def test_list_shows_each_checkpoint_with_its_base(chain):
    folder, _ = chain
    lines = run("list", folder).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == names(folder)
    assert [line.split()[-1] for line in lines[1:]] == ["-", *names(folder)[:3]]


def test_verify_finds_a_changed_byte_in_all_that_need_it(chain):
    folder, _ = chain
    done = run("verify", folder)
    assert done.exit_code == 0
    assert done.stdout.count(": valid") == 4
    data = folder / names(folder)[1] / "data-00000"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    done = run("verify", folder)
    assert done.exit_code == 1
    assert [": valid" in line for line in done.stdout.splitlines()] == [True, False, False, False]


def test_verify_finds_a_damaged_manifest_and_the_others_are_neither_compacted_nor_removed(chain):
    folder, _ = chain
    newest = names(folder)[-1]
    manifest = folder / newest / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 3', '"step": 4'))
    done = run("verify", folder)
    assert done.exit_code == 1
    assert f"{newest}: " in done.stdout
    assert done.stdout.count(": valid") == 3
    for command in ("compact", "prune"):
        assert "nothing was changed" in str(run(command, folder).exception)
        assert len(names(folder)) == 3


def test_compact_leaves_one_complete_checkpoint_with_the_newest_values(chain):
    folder, value = chain
    newest = CheckpointManager(folder).latest().manifest
    assert run("compact", folder).exit_code == 0
    (left,) = CheckpointManager(folder).all()
    assert left.manifest.base is None
    assert (left.manifest.step, left.manifest.values) == (newest.step, newest.values)
    np.testing.assert_array_equal(left.read("t"), value)
    assert "nothing was written" in run("compact", folder).stdout


def test_prune_keeps_the_bases_of_the_newest(chain):
    folder, _ = chain
    assert run("prune", folder, "--keep", 1).stdout.startswith("0 removed")
    assert len(names(folder)) == 4
    with CheckpointManager(folder, keep=9) as manager:
        manager.save(9, [], {})
    assert run("prune", folder, "--keep", 1, "--hourly").stdout.startswith("4 removed")
    assert len(names(folder)) == 1


@pytest.mark.parametrize("command", ["list", "verify", "compact", "prune"])
def test_a_folder_without_checkpoints_is_an_error(command, tmp_path):
    assert "there is no checkpoint" in str(run(command, tmp_path).exception)
