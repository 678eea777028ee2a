"""The TPU compiler, if jax and libtpu are installed: `make test-tpu`."""

import importlib.util
import json

import pytest
import tensorflow as tf

from tests.tpu.test_step import Picks, model
from twml_ops import tpu
from twml_ops.cli import main
from twml_ops.tpu import compile_subprocess

HAVE = all(importlib.util.find_spec(name) for name in ("jax", "libtpu"))
needs_compiler = pytest.mark.skipif(not HAVE, reason="needs twml_ops[tpu]: run `make test-tpu`")


@needs_compiler
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_sparse_mlp_compiles(chip, capsys):
    main(["tpu-check", "sparse_mlp", "--chip", chip, "--batch-size", "64", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["problem"] is None
    assert report["fits"]
    assert report["compiled"]["devices"] == 4
    assert report["compiled"]["flops"] > 0
    assert report["seconds"] > 0
    (big,) = [t for t in report["tables"] if t["name"] == "deep_categorical"]
    assert big["bytes"] == 2**18 * 32 * 4 * 2  # with Adagrad's slot
    assert big["share"] * 4 == big["bytes"]


@needs_compiler
def test_dcn_compiles(capsys):
    main(["tpu-check", "dcn", "--batch-size", "64", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["problem"] is None
    assert report["in_place"]


@needs_compiler
def test_a_step_that_does_not_fit_into_memory_is_reported():
    inputs = tf.keras.Input([2], dtype="int64")
    from twml_ops import layers

    layer = layers.SparseLinear(128, 2**16, kernel_initializer="zeros")
    made = tf.keras.Model(inputs, tf.keras.layers.Dense(1, "sigmoid")(layer(inputs)))
    report = tpu.check(made, "v5e", batch_size=8)
    assert report.fits
    small = report.chip._replace(hbm=2**20)
    assert not report.__class__(**{**vars(report), "chip": small}).fits


@needs_compiler
def test_an_unknown_topology_is_reported_as_a_problem():
    report = tpu.check(model(), "v5e", batch_size=8, topology="3x5")
    assert report.compiled is None
    assert report.problem is not None


def test_a_dynamic_model_is_reported_without_the_compiler():
    report = tpu.check(model(Picks(name="picker")), "v5e", batch_size=8)
    assert report.problem.layer == "picker"
    assert not report.fits


def test_the_command_names_the_layer(tmp_path, capsys):
    script = tmp_path / "dynamic.py"
    script.write_text(
        "import tensorflow as tf\n"
        "from twml_ops import layers\n"
        "def build():\n"
        "    inputs = tf.keras.Input([3], dtype='int64')\n"
        "    x = layers.SparseLinear(2, 9, name='table')(inputs)\n"
        "    unique = tf.keras.layers.Lambda(\n"
        "        lambda x: x + tf.cast(tf.size(tf.unique(tf.reshape(x, [-1])).y), tf.float32),\n"
        "        output_shape=(2,), name='distinct')\n"
        "    return tf.keras.Model(inputs, unique(x))\n"
    )
    with pytest.raises(SystemExit) as result:
        main(["tpu-check", f"{script}:build"])
    assert result.value.code == 1
    out = capsys.readouterr().out
    assert "does not compile" in out
    assert "distinct" in out


@pytest.mark.skipif(HAVE, reason="jax and libtpu are installed")
def test_missing_packages_are_named():
    with pytest.raises(ImportError, match=r"tpu-check needs jax and libtpu.*twml_ops\[tpu\]"):
        compile_subprocess.compile_for(b"", "v5e:2x2")
