"""Checkpoints become versions of a served model: changed rows where that is enough."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both, pairwise
from twml_ops import export, layers, optimizers
from twml_ops.checkpoint import CheckpointManager, TablePolicy, variables_of
from twml_ops.core import Scorer
from twml_ops.export.scorer_layout import difference, layout_digests

N, UNITS = 20_000, 16  # 1.28 MB
PROBE = np.arange(0, N, 7)


def make_model(partitions=1, axis="row", activation="relu"):
    tf.keras.utils.set_random_seed(1)
    inputs = tf.keras.Input([None], dtype="int64", ragged=True, name="x_ids")
    table = layers.SparseLinear(
        UNITS, N, num_partitions=partitions, partition_axis=axis, name="table"
    )
    hidden = tf.keras.layers.BatchNormalization(name="bn")(table(inputs))
    hidden = tf.keras.layers.Activation(activation)(hidden)
    output = tf.keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = tf.keras.Model(inputs, output)
    model.compile(optimizers.Adagrad(0.1), "binary_crossentropy")
    model.optimizer.build(model.trainable_variables)
    return model


def train(model, seed, entries=400):
    rng = np.random.default_rng(seed)
    ids = tf.RaggedTensor.from_uniform_row_length(tf.constant(rng.integers(0, N, entries)), 10)
    model.train_on_batch(ids, tf.constant(rng.random((entries // 10, 1)) > 0.5, tf.float32))


def predict(model):
    rows = tf.RaggedTensor.from_uniform_row_length(tf.constant(PROBE), 1)
    return model(rows, training=False).numpy()


def scores(folder, **options):
    return Scorer.load(folder, **options).predict(PROBE, row_splits=np.arange(len(PROBE) + 1))


def manager_of(tmp_path, policy, **options):
    return CheckpointManager(
        tmp_path / "checkpoints", background=False, tables=TablePolicy(policy), **options
    )


def program_of(folder):
    return json.loads((folder / "scorer.json").read_text())


@pairwise(
    policy=["full", "one-shot", "consecutive", "intermittent"],
    partitions=[(1, "row"), (3, "row"), (2, "column")],
)
def test_every_checkpoint_is_served_as_the_model_of_its_moment(tmp_path, policy, partitions):
    model = make_model(*partitions)
    served = tmp_path / "served"
    publisher = export.ScorerPublisher(model, served)
    written = []
    hook = lambda checkpoint: written.append(publisher.publish(checkpoint))  # noqa: E731
    with manager_of(tmp_path, policy, on_written=hook) as manager:
        for step in range(4):
            train(model, step)
            manager.save(step + 1, variables_of(model), {})
            np.testing.assert_allclose(scores(served / str(step + 1)), predict(model), atol=1e-6)
    assert [w.base and w.base.name for w in written] == [None, "1", "1", "1"]
    assert all(w.bytes < written[0].bytes / 2 for w in written[1:])
    assert [program_of(w.folder)["step"] for w in written[2:]] == [3, 4]
    assert sorted(p.name for p in served.iterdir()) == ["1", "3", "4"]  # the last two and the base


@pytest.mark.parametrize("tables", on_both(["bfloat16", "int8", "int4"], "int8"))
def test_smaller_tables_are_published_as_changed_rows(tmp_path, tables):
    model = make_model()
    publisher = export.ScorerPublisher(model, tmp_path / "served", tables=tables)
    with manager_of(tmp_path, "consecutive", on_written=publisher.publish) as manager:
        for step in range(3):
            train(model, step)
            manager.save(step, variables_of(model), {})
    export.to_scorer(model, tmp_path / "whole", tables=tables)
    newest = tmp_path / "served" / "3"
    assert program_of(newest)["format"] == 2
    want = scores(tmp_path / "whole")
    for options in ({}, {"storage": "memory"}, {"storage": "file", "least_bytes": 0}):
        np.testing.assert_array_equal(scores(newest, **options), want)


def test_a_version_that_failed_is_in_the_next_one(tmp_path, monkeypatch):
    model = make_model()
    publisher = export.ScorerPublisher(model, tmp_path / "served")
    failures = [None, OSError("no space left"), None]

    def hook(checkpoint):
        failure = failures.pop(0)
        if failure is None:
            publisher.publish(checkpoint)

    with manager_of(tmp_path, "consecutive", keep=3, on_written=hook) as manager:
        for step in range(3):
            train(model, step)
            manager.save(step, variables_of(model), {})
    np.testing.assert_allclose(scores(tmp_path / "served" / "2"), predict(model), atol=1e-6)


def test_a_new_publisher_goes_on_with_the_versions_that_are_there(tmp_path):
    model, served = make_model(), tmp_path / "served"
    export.ScorerPublisher(model, served).publish_model()
    train(model, 1)
    publisher = export.ScorerPublisher(model, served)
    with manager_of(tmp_path, "consecutive", on_written=publisher.publish) as manager:
        manager.save(1, variables_of(model), {})
        assert program_of(served / "2")["base"]["folder"] == "1"
        np.testing.assert_allclose(scores(served / "2"), predict(model), atol=1e-6)
        export.ScorerPublisher(model, served).publish_model()  # by somebody else
        train(model, 2)
        manager.save(2, variables_of(model), {})
    np.testing.assert_allclose(scores(served / "4"), predict(model), atol=1e-6)


def test_another_layout_is_a_whole_version_with_the_reason(tmp_path):
    served = tmp_path / "served"
    export.ScorerPublisher(make_model(), served).publish_model()
    written = export.ScorerPublisher(make_model(activation="tanh"), served).publish_model()
    assert written.base is None
    assert written.reason == "the steps of 1 differ"
    assert program_of(written.folder)["whole"] == written.reason
    same = export.ScorerPublisher(make_model(activation="tanh"), served).publish_model()
    assert (same.base.name, same.rows) == ("2", 0)


def test_many_changed_rows_are_a_whole_version(tmp_path):
    model, served = make_model(), tmp_path / "served"
    publisher = export.ScorerPublisher(model, served)
    with manager_of(tmp_path, "consecutive", on_written=publisher.publish) as manager:
        for step in range(3):
            train(model, step, entries=4000)
            manager.save(step, variables_of(model), {})
            newest = served / str(step + 1)
            np.testing.assert_allclose(scores(newest), predict(model), atol=1e-6)
    assert "base" in program_of(served / "2")
    assert "few rows" in program_of(served / "3")["whole"]  # the changes have added up


def test_the_training_may_go_on_while_a_checkpoint_is_published(tmp_path):
    model = make_model()
    publisher = export.ScorerPublisher(model, tmp_path / "served")
    with manager_of(tmp_path, "consecutive") as manager:
        for step in range(2):
            train(model, step)
            manager.save(step, variables_of(model), {})
            expected = predict(model)
            train(model, 100 + step)  # not in the checkpoint
            publisher.publish(manager.latest())
            newest = tmp_path / "served" / str(step + 1)
            np.testing.assert_allclose(scores(newest), expected, atol=1e-6)


@pytest.mark.one_tf
def test_a_checkpoint_that_is_not_newer_is_refused_and_one_of_another_folder_is_whole(tmp_path):
    model = make_model()
    served = tmp_path / "served"
    publisher = export.ScorerPublisher(model, served)
    with manager_of(tmp_path, "consecutive", keep=3) as manager:
        for step in range(3):
            train(model, step)
            manager.save(step, variables_of(model), {})
        first, second, third = manager.all()
        publisher.publish(first)
        publisher.publish(third)  # which has the rows of the second one, too
        for other in (first, second, third):
            with pytest.raises(
                ValueError, match=f"newer than {third.folder.name}.*got {other.folder.name}"
            ):
                publisher.publish(other)
    np.testing.assert_allclose(scores(served / "2"), predict(model), atol=1e-6)
    assert sorted(p.name for p in served.iterdir()) == ["1", "2"]
    with manager_of(tmp_path / "again", "consecutive") as manager:
        for step in range(2):  # these checkpoints have the names of the first ones
            train(model, 7 + step)
            manager.save(step, variables_of(model), {})
        publisher.publish(manager.latest())
    np.testing.assert_allclose(scores(served / "3"), predict(model), atol=1e-6)


def test_an_evicted_id_is_answered_like_an_unknown_one_by_the_next_version(tmp_path):
    inputs = tf.keras.Input([None], dtype="int64", ragged=True, name="x_ids")
    options = {"bias_initializer": "ones", "kernel_initializer": "random_normal"}
    hidden = layers.DynamicSparseLinear(UNITS, N, **options)(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    model.compile(optimizers.Adagrad(0.1), "mse")

    def train_on(ids):
        rows = tf.RaggedTensor.from_uniform_row_length(tf.constant(ids, tf.int64), 1)
        model.train_on_batch(rows, tf.ones([len(ids), 1]))

    new, unknown = 10**12 + np.arange(5), -7
    probe = np.array([*range(12), N - 2, *new, unknown])

    def answers(version):
        rows = tf.RaggedTensor.from_uniform_row_length(tf.constant(probe, tf.int64), 1)
        expected = model(rows, training=False).numpy()
        scorer = Scorer.load(version)
        got = scorer.predict(probe, row_splits=np.arange(len(probe) + 1))
        np.testing.assert_allclose(got, expected, atol=1e-6)
        return dict(zip(probe.tolist(), got[:, 0], strict=True))

    def like_unknown(found):
        return {i for i, score in found.items() if score == found[unknown]} - {unknown}

    served = tmp_path / "served"
    publisher = export.ScorerPublisher(model, served)
    with manager_of(tmp_path, "consecutive", on_written=publisher.publish) as manager:
        train_on(range(10))  # the least recently used ids
        train_on(range(10, N - 1))  # all rows but that of ids without a row
        manager.save(1, variables_of(model), {})
        assert like_unknown(answers(served / "1")) == set(new.tolist())
        train_on(new)
        manager.save(2, variables_of(model), {})
        evicted = like_unknown(answers(served / "2"))
        assert len(evicted) == len(new)
        assert evicted < set(range(10))
        train_on(sorted(evicted))
        manager.save(3, variables_of(model), {})
        lost = like_unknown(answers(served / "3"))
        assert not lost & evicted
        second, third = manager.all()[-2:]
        for repeated in (second, third):  # rows that were evicted meanwhile would come back
            with pytest.raises(ValueError, match=f"newer than {third.folder.name}"):
                publisher.publish(repeated)
        manager.on_written = None
        train_on(new[:3] + 100)
        manager.save(4, variables_of(model), {})  # not published
        train_on(new[:1] + 200)
        manager.save(5, variables_of(model), {})
        publisher.publish(manager.latest())
    assert like_unknown(answers(served / "4")) > lost
    assert program_of(served / "4")["base"]["folder"] == "1"
    (served / "1").rename(served / "base")
    with pytest.raises(ValueError, match="cannot be opened"):
        Scorer.load(served / "4")
    export.to_scorer(model, served / "1")
    with pytest.raises(ValueError, match="another fingerprint"):
        Scorer.load(served / "4")


def test_a_damaged_checkpoint_is_not_published(tmp_path):
    model, served = make_model(), tmp_path / "served"
    publisher = export.ScorerPublisher(model, served)
    with manager_of(tmp_path, "consecutive") as manager:
        manager.save(1, variables_of(model), {})
        publisher.publish(manager.latest())
        train(model, 1)
        manager.save(2, variables_of(model), {})
        newest = manager.latest()
        data = newest.folder / "data-00000"
        content = bytearray(data.read_bytes())
        content[len(content) // 2 :: 997] = b"\xff" * len(content[len(content) // 2 :: 997])
        data.write_bytes(bytes(content))
        with pytest.raises(Exception, match="damaged"):
            publisher.publish(newest)
    assert [p.name for p in served.iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("op", "array", "part"),
    [
        ("percentile_discretize", "boundaries", "boundaries"),
        ("category_rows", "keys", "vocabulary"),
        ("isotonic_calibration", "corner_values", "calibration"),
        ("dense", "kernel", None),
        ("max_norm", "max_abs", None),
    ],
)
def test_a_layout_has_a_digest_of_all_that_is_not_trained(op, array, part):
    step = {"op": op, "in": ["x"], "out": ["y"], "arrays": {array: "a.npy"}, "attributes": {}}
    program = {"inputs": {"x": "dense"}, "steps": [step], "output": "y"}

    def layout(value, program=program):
        made = np.full(3, value, np.float32)
        return layout_digests(program, {"a.npy": (made.dtype.str, made.shape)}, {"a.npy": made})

    assert difference(layout(1), layout(1)) is None
    assert difference(layout(1), layout(2)) == part
    assert difference(layout(1, {**program, "raw": {}}), layout(1)) == "schema"
    other = [{**step, "attributes": {"axis": 1}}]
    assert difference(layout(1, {**program, "steps": other}), layout(1)) == "steps"


def test_folders_of_somebody_else_stay_and_are_no_versions(tmp_path):
    for name in ("1", "2023"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "clicks.csv").write_text("mine")
    publisher = export.ScorerPublisher(make_model(), tmp_path, keep=1)
    for _ in range(3):
        publisher.publish_model()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2023", "2024", "2026"]
    assert (tmp_path / "1" / "clicks.csv").read_text() == "mine"


def test_two_publishers_do_not_write_at_once(tmp_path):
    one, other = (export.ScorerPublisher(make_model(), tmp_path) for _ in range(2))
    with one._alone(), pytest.raises(OSError, match="another publisher is writing a version"):
        other.publish_model()
    assert list(tmp_path.iterdir()) == []
    other.publish_model()
    one.publish_model()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"]


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="keep must be at least 1"):
        export.ScorerPublisher(make_model(), tmp_path, keep=0)
