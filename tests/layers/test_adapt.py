import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from twml_ops import core, ops
from twml_ops.layers import HashingDiscretizer, PercentileDiscretizer

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 6, [4000, 5])
VALUES = RNG.normal(size=[4000, 5]).astype("f")


def dataset(batch_size=100):
    return tf.data.Dataset.from_tensor_slices((IDS, VALUES)).batch(batch_size)


def layer(**kwargs):
    return PercentileDiscretizer(**{"num_bins": 8, "epsilon": 0.01, **kwargs})


def boundaries(layer):
    return [v.numpy() for v in layer.state_variables]


def assert_same(a, b):
    for x, y in zip(boundaries(a), boundaries(b), strict=True):
        np.testing.assert_array_equal(x, y)


def adapted(**kwargs):
    made = layer(**kwargs)
    made.adapt(dataset())
    return made


def test_the_result_does_not_depend_on_the_batches():
    other = layer()
    other.adapt(dataset(7))
    assert_same(adapted(), other)


def test_buckets_hold_equal_shares_within_epsilon():
    made = adapted(epsilon=0.005, unknown="error", missing="drop")
    ids, _ = made((tf.constant(IDS), tf.constant(VALUES)))
    shares = np.bincount(np.ravel(ids)) / np.repeat(np.bincount(np.ravel(IDS)), 8)
    np.testing.assert_allclose(shares, 1 / 8, atol=2 * 0.005)


def test_few_distinct_values_get_a_bucket_each_however_much_data():
    values = np.floor(np.abs(RNG.standard_cauchy(300_000))).clip(0, 499).astype("f")
    made = layer(num_bins=500, epsilon=0.2)
    made.adapt((np.zeros([300_000, 1], np.int64), values[:, None]))
    np.testing.assert_array_equal(made.state_variables[1], np.unique(values)[:-1])


def test_integer_weights_equal_repetitions():
    weights = RNG.integers(0, 4, len(IDS))
    weighted, repeated = layer(), layer()
    data = tf.data.Dataset.from_tensor_slices(((IDS, VALUES), weights)).batch(64)
    weighted.adapt(data, weighted=True)
    repeated.adapt((np.repeat(IDS, weights, axis=0), np.repeat(VALUES, weights, axis=0)))
    ids, _ = weighted((tf.constant(IDS), tf.constant(VALUES)))
    other, _ = repeated((tf.constant(IDS), tf.constant(VALUES)))
    different = np.average(ids != other, weights=np.repeat(weights[:, None], 5, axis=1))
    assert different < 8 * 2 * 0.01
    assert weighted.sketch.describe([0])["weight"] == repeated.sketch.describe([0])["weight"]


def test_four_processes_merged_and_published_equal_one_within_epsilon(tmp_path):
    """Each process has a shard, its sketch goes through a file, and what they found is saved."""
    code = """
        import sys
        import numpy as np
        from twml_ops.core import QuantileSketch

        ids, values, out = np.load(sys.argv[1]), np.load(sys.argv[2]), sys.argv[3]
        sketch = QuantileSketch(0.01, exact_values=1024)
        sketch.update(np.ravel(ids), np.ravel(values))
        np.savez(out, **sketch.state())
    """
    processes = []
    for p in range(4):
        paths = [str(tmp_path / f"{p}{name}") for name in ("i.npy", "v.npy", "s.npz")]
        np.save(paths[0], IDS[p::4])
        np.save(paths[1], VALUES[p::4])
        command = [sys.executable, "-c", textwrap.dedent(code), *paths]
        processes.append((subprocess.Popen(command), paths[2]))
    assert [process.wait() for process, _ in processes] == [0] * 4
    merged = layer(unknown="error", missing="drop")
    merged.adapt_from_sketch(
        *(core.QuantileSketch.from_state(dict(np.load(path))) for _, path in processes)
    )
    inputs = [tf.keras.Input([None], dtype="int64"), tf.keras.Input([None])]
    tf.keras.Model(inputs, merged(inputs)).save(tmp_path / "m.keras")
    published = tf.keras.models.load_model(tmp_path / "m.keras").layers[-1]
    one = adapted(unknown="error", missing="drop")
    bound = one.sketch.describe(np.arange(6))
    assert np.all(bound["rank_error"] > 0)  # the sketches have lost something
    for feature in range(6):
        seen = np.sort(VALUES[np.equal(IDS, feature)])
        shares = [
            np.searchsorted(seen, made.boundaries[feature], "right") / len(seen)
            for made in (one, published)
        ]
        for of_cuts in shares:
            np.testing.assert_allclose(of_cuts, np.arange(1, 8) / 8, atol=0.01)
        np.testing.assert_allclose(*shares, atol=0.01)


ADAPT = """
    import os, signal, sys
    import numpy as np
    import tensorflow as tf
    from twml_ops.layers import PercentileDiscretizer

    folder, out, batches, size, features, kill_at = sys.argv[1:3] + [int(a) for a in sys.argv[3:]]

    def batch(i):
        ids = tf.reshape(tf.range(i * size, (i + 1) * size) % features, [-1, 100])
        return ids, tf.random.stateless_normal(tf.shape(ids), tf.stack([i, i]))

    def killing(i, ids, values):
        if i == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return ids, values

    data = tf.data.Dataset.range(batches).map(lambda i: (i, *batch(i)))
    data = data.map(
        lambda *b: tuple(tf.numpy_function(killing, b, [tf.int64, tf.float32]))
    ).map(lambda i, v: (tf.ensure_shape(i, [None, 100]), tf.ensure_shape(v, [None, 100])))
    data = data.apply(tf.data.experimental.assert_cardinality(batches))
    layer = PercentileDiscretizer(20)
    seconds = 0 if batches < 100 else 0.1  # writing often would take most of a large one's time
    layer.adapt(data, checkpoint_dir=folder, checkpoint_seconds=seconds)
    variables = {f"v{i}": v.numpy() for i, v in enumerate(layer.state_variables)}
    np.savez(out, kept=layer.sketch.nbytes, **variables, **layer.sketch.state())
"""


def run_adapt(*arguments):
    """Runs `adapt` in a child process and returns its exit code."""
    return forked.run(["-c", textwrap.dedent(ADAPT), *arguments]).returncode


def run_adapt_here(*arguments):
    """Runs `adapt` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["-c", *map(str, arguments)])
        exec(textwrap.dedent(ADAPT), {})
    return 0


def killed_and_resumed(folder, run, batches, size, features):
    """The result of an undisturbed `adapt` and of one that is resumed after SIGKILL."""
    assert run(folder / "a", folder / "a.npz", batches, size, features, -1) == 0
    half = folder / "b", folder / "b.npz", batches, size, features
    assert run_adapt(*half, batches * 2 // 3) == -signal.SIGKILL
    with np.load(folder / "b" / "adapt.npz") as file:
        assert 0 < file["position"] <= batches * 2 // 3
    assert run(*half, -1) == 0
    return dict(np.load(folder / "a.npz")), dict(np.load(folder / "b.npz"))


@pytest.mark.parametrize(
    ("run", "batches", "size", "features"),
    [
        (run_adapt_here, 30, 2000, 7),
        pytest.param(run_adapt, 1000, 100_000, 10_000, marks=pytest.mark.slow),
    ],
    ids=["small", "large"],
)
def test_adapt_resumed_after_sigkill_gives_the_same_result(tmp_path, run, batches, size, features):
    once, resumed = killed_and_resumed(tmp_path, run, batches, size, features)
    assert once["totals"][:, 0].sum() == batches * size
    for key in once.keys() - {"kept"}:
        np.testing.assert_array_equal(once[key], resumed[key], err_msg=key)
    if run is run_adapt:
        assert max(once["kept"], resumed["kept"]) < batches * size * 12 / 2  # of the data's bytes


class Killed(BaseException):
    pass


def killed_after(batches):
    def generate():
        for i, batch in enumerate(dataset().as_numpy_iterator()):
            if i == batches:
                raise Killed
            yield batch

    spec = (tf.TensorSpec([None, 5], tf.int64), tf.TensorSpec([None, 5]))
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


def test_adapt_resumed_after_an_exception_gives_the_same_boundaries(tmp_path):
    first = layer()
    with pytest.raises(Exception, match="Killed|killed|unknown|UNKNOWN"):
        first.adapt(killed_after(17), checkpoint_dir=tmp_path, checkpoint_seconds=0)
    assert not first.adapted
    assert (tmp_path / "adapt.npz").exists()
    again = layer()
    again.adapt(dataset(), checkpoint_dir=tmp_path, checkpoint_seconds=0)
    assert not list(tmp_path.iterdir())
    assert_same(again, adapted())


def test_a_checkpoint_of_another_call_is_refused(tmp_path):
    with pytest.raises(Exception, match="Killed|killed|unknown|UNKNOWN"):
        layer().adapt(killed_after(3), checkpoint_dir=tmp_path, checkpoint_seconds=0)
    with pytest.raises(ValueError, match="checkpoint of another call of adapt"):
        layer(num_bins=9).adapt(dataset(), checkpoint_dir=tmp_path)
    (tmp_path / "adapt.npz").write_bytes(b"PK rubbish")
    with pytest.raises(ValueError, match="not a checkpoint of adapt"):
        layer().adapt(dataset(), checkpoint_dir=tmp_path)


def test_progress_is_shown_if_requested(capsys, monkeypatch):
    monkeypatch.setattr("twml_ops.layers._adapt._SHOW_AFTER", 0.0)
    layer().adapt(dataset(), progress=True)
    shown = capsys.readouterr().err
    assert "of 40 batches" in shown
    assert "values/s" in shown
    layer().adapt(dataset(), progress=False)
    assert capsys.readouterr().err == ""


def test_adapt_from_sketch_takes_tensorflow_sketches():
    sketch = ops.QuantileSketch(0.01, 1024)
    sketch.update(np.ravel(IDS), np.ravel(VALUES))
    made = layer()
    made.adapt_from_sketch(sketch)
    assert_same(made, adapted())


def assert_same_sketch(a, b):
    for key, array in a.state().items():
        np.testing.assert_array_equal(array, b.state()[key], err_msg=key)


@pytest.mark.parametrize("kind", [PercentileDiscretizer, HashingDiscretizer])
def test_a_kept_sketch_survives_files_and_checkpoints(kind, tmp_path):
    bits = {"output_bits": 10} if kind is HashingDiscretizer else {}
    made = kind(num_bins=8, epsilon=0.01, keep_sketch=True, **bits)
    made.adapt(dataset())
    inputs = [tf.keras.Input([None], dtype="int64"), tf.keras.Input([None])]
    model = tf.keras.Model(inputs, made(inputs))
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras").layers[-1]
    assert_same_sketch(loaded.sketch, made.sketch)
    path = tf.train.Checkpoint(layer=made).save(str(tmp_path / "c"))
    other = kind(num_bins=8, epsilon=0.01, keep_sketch=True, **bits)
    tf.train.Checkpoint(layer=other).restore(path).assert_consumed()
    assert_same_sketch(other.sketch, made.sketch)
    assert_same(other, made)
    module = tf.Module()
    module.state = [*made.state_variables, *made.sketch_variables]
    tf.saved_model.save(module, str(tmp_path / "s"))
    kept = tf.saved_model.load(str(tmp_path / "s")).state
    for a, b in zip(kept, module.state, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_keep_sketch_files_have_boundaries_only(tmp_path):
    made = adapted()
    path = tf.train.Checkpoint(layer=made).save(str(tmp_path / "c"))
    assert not [name for name, _ in tf.train.list_variables(path) if "sketch" in name]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.adapt_from_sketch(), "expected at least one sketch"),
        (lambda m: m.adapt_from_sketch(m.new_sketch(), core.QuantileSketch()), "other must have"),
        (lambda m: m.adapt(dataset(), weighted=True), "weight|batch"),
        (lambda m: layer(epsilon=0), "epsilon must be in"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(layer())


@pytest.mark.slow
def test_a_million_features_are_adapted():
    n = 10**6
    made = PercentileDiscretizer(4, epsilon=0.05, unknown="error")
    rng = np.random.default_rng(1)
    data = tf.data.Dataset.range(20).map(
        lambda i: (
            tf.reshape(tf.range(n, dtype=tf.int64) * 1_000_003, [1000, -1]),
            tf.numpy_function(lambda _: rng.random((1000, 1000), "f"), [i], tf.float32),
        )
    )
    data = data.map(lambda i, v: (i, tf.ensure_shape(v, [1000, 1000])))
    made.adapt(data)
    assert made.output_dim == 5 * n
    assert made.sketch.nbytes / n < 400
