"""The stock export in environments with TensorFlow but without this package.

Fresh ones are made with the running TensorFlow and the oldest supported (minutes). To use what is
there instead, name interpreters in TWML_OPS_CLEAN_PYTHONS, as PATH names folders.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.export.conftest import batch, ragged
from twml_ops import export

OLDEST = "2.15"
SCORE = """
import importlib.util, json, sys
assert importlib.util.find_spec("twml_ops") is None, "twml_ops is installed here"
import numpy as np, tensorflow as tf
with np.load(sys.argv[2]) as tensors:
    inputs = {k: tf.constant(v) for k, v in tensors.items()}
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print(json.dumps([tf.__version__, serve(**inputs)["probability"].numpy().tolist()]))
"""


def clean_pythons(folder):
    """Interpreters of environments without this package."""
    named = os.environ.get("TWML_OPS_CLEAN_PYTHONS")
    if named:
        yield from named.split(os.pathsep)
        return
    running = ".".join(tf.__version__.split(".")[:2])
    for version in sorted({OLDEST, running}):
        subprocess.run([sys.executable, "-m", "venv", folder / version], check=True)
        python = folder / version / "bin" / "python"
        install = [python, "-m", "pip", "install", "-q", f"tensorflow-cpu=={version}.*"]
        subprocess.run(install, check=True)
        yield str(python)


@pytest.mark.slow
def test_stock_export_serves_in_clean_environments(model, tmp_path):
    export.to_stock_tf(model, tmp_path / "stock")
    ids, values, splits = batch()
    np.savez(tmp_path / "in.npz", f_ids=ids, f_values=values, f_row_splits=splits)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    want = model(ragged(ids, values, splits))
    for python in clean_pythons(tmp_path):
        done = subprocess.run(
            [python, "-c", SCORE, tmp_path / "stock", tmp_path / "in.npz"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        version, got = json.loads(done.stdout.splitlines()[-1])
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6, err_msg=version)
        print(f"exported by {tf.__version__}, served by {version}")
