"""Checkpoints of changed and quantized rows: what is restored, and what an error leaves."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint.training import BATCH, bits, epoch, make_small_model
from tests.pairwise import each_value, pairwise
from twml_ops import core, layers
from twml_ops.checkpoint import (
    CheckpointError,
    CheckpointManager,
    NamedVariable,
    TablePolicy,
    restore,
    variables_of,
)
from twml_ops.checkpoint.baseline_policy import baseline_pays
from twml_ops.checkpoint.incremental import tables_of
from twml_ops.checkpoint.rows import decode_rows, encode_rows
from twml_ops.optimizers import SGD, Adagrad, CompositeOptimizer, LazyAdam, LossScaleOptimizer

pytestmark = pytest.mark.usefixtures("fresh_keras")

POLICIES = ("one-shot", "consecutive", "intermittent")


def trained(optimizer=None):
    """A model after its first step."""
    model = make_small_model(optimizer or Adagrad(0.1))
    train(model, 0)
    return model


def train(model, number):
    batches = epoch(number, 3)
    x, y = batches[number % 3]
    model.train_on_batch(list(x), y)


def saved(manager, model, step):
    manager.save(step, variables_of(model), {"step": step})
    manager.wait()
    return manager.latest()


def restored_bits(checkpoint):
    model = trained()
    train(model, 1)
    restore(checkpoint, variables_of(model))
    return bits(model)


@pairwise(policy=POLICIES, background=[False, True])
def test_every_checkpoint_restores_the_state_of_its_moment(tmp_path, policy, background):
    model, states = trained(), []
    options = {"keep": 9, "background": background, "tables": TablePolicy(policy)}
    with CheckpointManager(tmp_path, **options) as manager:
        for step in range(5):
            saved(manager, model, step)
            states.append(bits(model))
            train(model, step)
        checkpoints = manager.all()
    assert len(checkpoints) == 5
    assert checkpoints[0].manifest.base is None
    other = trained()
    for checkpoint, state in zip(checkpoints, states, strict=True):
        checkpoint.verify()
        train(other, 1)
        restore(checkpoint, variables_of(other))
        assert bits(other) == state


def dynamic_model():
    """A model in which rows of the table often get new ids, after its first step."""
    tf.keras.utils.set_random_seed(1)
    ids = tf.keras.Input([None], dtype="int64")
    hidden = layers.DynamicSparseLinear(4, 12, min_count=2)(ids)
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(hidden))
    model.compile(Adagrad(0.1), "mse")
    train_dynamic(model, 0)
    return model


def train_dynamic(model, number):
    rng = np.random.default_rng(number)
    ids = rng.zipf(1.3, (BATCH, 5)).astype(np.int64) * 7919 - 10**12
    model.train_on_batch(ids, rng.normal(size=(BATCH, 1)).astype(np.float32))


@pytest.mark.one_tf
@pytest.mark.parametrize("policy", POLICIES)
def test_rows_that_got_new_ids_are_in_the_checkpoint(tmp_path, policy):
    model, states = dynamic_model(), []
    with CheckpointManager(tmp_path, keep=9, tables=TablePolicy(policy)) as manager:
        for step in range(6):
            saved(manager, model, step)
            states.append(bits(model))
            train_dynamic(model, step + 1)
        checkpoints = manager.all()
    other = dynamic_model()
    for checkpoint, state in zip(checkpoints, states, strict=True):
        restore(checkpoint, variables_of(other))
        assert bits(other) == state
    train_dynamic(other, 6)  # as the model did after its last checkpoint
    assert bits(other) == bits(model)


def bases(manager):
    names = [c.folder.name for c in manager.all()]
    found = [c.manifest.base for c in manager.all()]
    return [None if b is None else names.index(b) for b in found]


@pytest.mark.one_tf
def test_the_policies_differ_in_their_bases(tmp_path):
    want = {"full": [None] * 4, "one-shot": [None, 0, 0, 0], "consecutive": [None, 0, 1, 2]}
    for policy, expected in want.items():
        model = trained()
        folder = tmp_path / policy
        with CheckpointManager(folder, keep=9, tables=TablePolicy(policy)) as manager:
            for step in range(4):
                saved(manager, model, step)
                train(model, step)
            assert bases(manager) == expected


def parts():
    return CompositeOptimizer(tf.keras.optimizers.Adam(), {"kernel": Adagrad(0.1)})


WRAPPED = {
    "alone": lambda: Adagrad(0.1),
    "part of a composite": parts,
    "with a scaled loss": lambda: LossScaleOptimizer(Adagrad(0.1)),
    "part of a composite with a scaled loss": lambda: LossScaleOptimizer(parts()),
}


@pytest.mark.parametrize("optimizer", WRAPPED)
def test_a_checkpoint_has_only_the_rows_that_changed(tmp_path, optimizer):
    model = trained(WRAPPED[optimizer]())
    (group,) = tables_of(variables_of(model)).values()
    assert len(group) == 2  # the table and its accumulator
    with CheckpointManager(tmp_path, tables=TablePolicy("consecutive")) as manager:
        saved(manager, model, 0)
        unchanged = saved(manager, model, 1)
        kernel = group[0].variable
        before = kernel.numpy()
        train(model, 1)
        changed = saved(manager, model, 2)
    assert unchanged.entries[group[0].name].details["rows"] == 0
    differing = (kernel.numpy() != before).any(axis=1).sum()
    touched = changed.entries[group[0].name].details["rows"]
    assert 0 < differing <= touched < len(before)


@pytest.mark.one_tf
@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_a_checkpoint_that_failed_are_in_the_next_one(tmp_path, policy, monkeypatch):
    model = trained()
    with CheckpointManager(tmp_path, keep=9, tables=TablePolicy(policy)) as manager:
        saved(manager, model, 0)
        train(model, 1)
        folder = tmp_path / "ckpt-00000001-step-1"
        folder.write_text("a file where the folder should be")
        manager.save(1, variables_of(model), {})
        with pytest.raises(CheckpointError, match="cannot be written"):
            manager.wait()
        folder.unlink()
        train(model, 2)
        after = saved(manager, model, 2)
    assert restored_bits(after) == bits(model)


@pytest.mark.one_tf
def test_a_baseline_that_failed_is_written_again(tmp_path):
    model = trained()
    with CheckpointManager(tmp_path, tables=TablePolicy("one-shot")) as manager:
        manager.prune([])  # opens the folder, so the next checkpoint has the number 0
        folder = tmp_path / "ckpt-00000000-step-0"
        folder.write_text("a file where the folder should be")
        with pytest.raises(CheckpointError):
            saved(manager, model, 0)
        folder.unlink()
        train(model, 1)
        assert saved(manager, model, 1).manifest.base is None
        train(model, 2)
        after = saved(manager, model, 2)
    assert after.manifest.base is not None
    assert restored_bits(after) == bits(model)


def test_loaded_weights_are_in_the_next_checkpoint(tmp_path):
    model = trained()
    with CheckpointManager(tmp_path, keep=9, tables=TablePolicy("consecutive")) as manager:
        first = saved(manager, model, 0)
        train(model, 1)
        saved(manager, model, 1)
        restore(first, variables_of(model))
        after = saved(manager, model, 2)
    assert restored_bits(after) == bits(model)


@pytest.mark.one_tf
def test_another_model_with_the_same_names_begins_with_all_rows(tmp_path):
    """A run that chooses its number of epochs trains two models with one manager."""
    with CheckpointManager(tmp_path, keep=9, tables=TablePolicy("consecutive")) as manager:
        saved(manager, trained(), 0)
        model = trained()
        train(model, 1)
        after = saved(manager, model, 1)
    assert after.manifest.base is None
    assert restored_bits(after) == bits(model)


def test_the_bases_of_kept_checkpoints_are_kept(tmp_path):
    model = trained()
    with CheckpointManager(tmp_path, keep=1, tables=TablePolicy("one-shot")) as manager:
        for step in range(4):
            saved(manager, model, step)
            train(model, step)
        assert [c.manifest.step for c in manager.all()] == [0, 3]


@pytest.mark.one_tf
def test_a_missing_base_makes_the_checkpoint_invalid_and_the_next_one_a_baseline(tmp_path):
    model = trained()
    with CheckpointManager(tmp_path, keep=9, tables=TablePolicy("consecutive")) as manager:
        first = saved(manager, model, 0)
        train(model, 1)
        second = saved(manager, model, 1)
        manager._remove(first.folder)
        with pytest.raises(CheckpointError, match="has the changes to"):
            second.verify()
        with pytest.raises(CheckpointError, match="has the changes to"):
            restored_bits(second)
        manager._remove(second.folder)
        assert saved(manager, model, 2).manifest.base is None


@pytest.mark.one_tf
@each_value(policy=["full", *POLICIES], width=[8, 2])
def test_quantized_tables_are_restored_within_their_error(tmp_path, policy, width):
    model = make_small_model(LazyAdam(0.1))
    train(model, 0)
    patterns = {"optimizer/*": 8, "*": width}
    with CheckpointManager(tmp_path, keep=9, tables=TablePolicy(policy, patterns)) as manager:
        for step in range(3):
            before = {v.name: np.array(v.view()) for v in variables_of(model)}
            checkpoint = saved(manager, model, step)
            train(model, step)
    again = make_small_model(LazyAdam(0.1))
    train(again, 0)
    restore(checkpoint, variables_of(again))
    tables = {v.name for group in tables_of(variables_of(model)).values() for v in group}
    for variable in variables_of(again):
        got, want = variable.view(), before[variable.name]
        if variable.name not in tables:
            assert got.tobytes() == want.tobytes(), variable.label
            continue
        used = 8 if variable.label.startswith("optimizer/") else width
        step_of = np.ptp(want, axis=1) / (2**used - 1)
        allowed = np.maximum(step_of, np.abs(want).max(axis=1) / 2048)
        error = np.sqrt(((got - want) ** 2).mean(axis=1))
        assert (error <= allowed * 1.0001).all(), variable.label


def test_a_new_baseline_pays_when_the_changes_have_grown():
    assert not baseline_pays(100, [])
    assert not baseline_pays(100, [10])
    assert baseline_pays(100, [100])
    sizes = [10]
    while not baseline_pays(100, sizes):
        sizes.append(sizes[-1] + 10)
    i = len(sizes)
    assert 100 + sum(sizes) <= (i + 1) * sizes[-1]
    assert 100 + sum(sizes[:-1]) > i * sizes[-2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64"])
@pytest.mark.parametrize("width", [None, 8, 3])
@pytest.mark.parametrize("shape", [(0, 3), (9,), (70, 5), (70, 33), (1, 1), (5, 0)])
def test_encoded_rows_come_back(shape, width, dtype):
    rng = np.random.default_rng(1)
    table = tf.cast(rng.normal(size=shape) * 10, dtype).numpy()
    for ids in (
        None,
        np.arange(0),
        np.flatnonzero(rng.random(shape[0]) < 0.03),
        np.arange(shape[0]),
    ):
        rows = table if ids is None else table[ids]
        encoded = encode_rows(rows, ids, shape[0], width)
        data = np.concatenate(
            [np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in encoded.pieces]
        )
        got_ids, got = decode_rows(data, dtype, shape, encoded.details)
        assert (got_ids is None) == (ids is None)
        assert ids is None or got_ids.tolist() == ids.tolist()
        assert got.dtype == table.dtype
        if "quantized" in encoded.details:
            assert encoded.bytes < rows.nbytes + len(ids if ids is not None else ()) * 4
            np.testing.assert_allclose(
                got.astype(np.float32), rows.astype(np.float32), atol=12 if width == 3 else 0.4
            )
        else:
            assert got.tobytes() == rows.tobytes()


@pytest.mark.parametrize(
    ("details", "message"),
    [
        ({}, "invalid details"),
        ({"rows": 3}, "there must be 4 rows, got 3"),
        ({"rows": 2, "ids": "text"}, "got 'text'"),
        ({"rows": 2, "ids": "<u4"}, "ids must ascend"),
        ({"rows": 4, "quantized": [-1]}, "bytes of quantized rows"),
        ({"rows": 4, "quantized": [64]}, "output of quantize_rows"),
        ({"rows": 4, "quantized": [64], "stored": [64]}, "coded rows are damaged"),
        ({"rows": 4, "quantized": [64], "stored": [63]}, "bytes of coded rows"),
        ({"rows": 4, "quantized": [64], "stored": [32, 32]}, "coded rows are damaged"),
        ({"rows": 4, "stored": [64]}, "bytes of coded rows"),
    ],
)
def test_details_that_do_not_fit_are_errors(details, message):
    with pytest.raises(ValueError, match=message):
        decode_rows(np.full(64, 9, np.uint8), "float32", (4, 4), details)


def test_quantized_rows_are_entropy_coded_if_that_makes_them_smaller():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(500, 32)).astype(np.float32)
    encoded = encode_rows(table, None, 500, 8)
    assert encoded.bytes == sum(encoded.details["stored"]) < sum(encoded.details["quantized"])
    data = np.concatenate(encoded.pieces)
    _, rows = decode_rows(data, "float32", table.shape, encoded.details)
    exact = {k: v for k, v in encoded.details.items() if k != "stored"}
    plain = core.quantize_rows(table, bits=8, bins=0)
    np.testing.assert_array_equal(rows, decode_rows(plain, "float32", table.shape, exact)[1])
    for cut in (1, 100, len(data) - 1):
        details = {**encoded.details, "stored": [cut]}
        with pytest.raises(ValueError, match="expected, got|damaged"):
            decode_rows(data[:cut], "float32", table.shape, details)


def test_options_out_of_range_are_errors():
    with pytest.raises(ValueError, match="policy must be one of full, one-shot, .* got 'often'"):
        TablePolicy("often")
    with pytest.raises(ValueError, match=r"bits\['\*'\] must be 8, 4, 3 or 2 bits or None, got 5"):
        TablePolicy("full", {"*": 5})


def test_a_checkpoint_is_complete_where_a_base_of_its_base_was_deleted(tmp_path):
    table = tf.Variable(tf.zeros([30, 4]))
    optimizer = SGD(0.1)
    optimizer.build([table])
    variable = NamedVariable("t", "table", (table,), table="t")
    policy = TablePolicy("consecutive")
    with CheckpointManager(tmp_path, keep=9, background=False, tables=policy) as manager:
        for step in range(4):
            rows = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([step, 7]))
            optimizer.apply_gradients([(rows, table)])
            if step == 3:
                shutil.rmtree(manager.all()[0].folder)
            manager.save(step, [variable], {})
        newest = manager.newest_intact()
    assert newest.manifest.base is None
    np.testing.assert_array_equal(newest.read("t"), table.numpy())
