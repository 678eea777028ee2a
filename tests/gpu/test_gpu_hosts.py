"""Beside a GPU: tables and what belongs to them on the host, the dense part on the GPU.

The GPU is a fake one, see fake_gpu.cc. A process cannot unload it, so another process runs the
scenarios of host_scenarios.py, and this one, without a GPU, says which numbers they must give.
"""

import hashlib
import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

FOLDER = Path(__file__).parent
BUILT = FOLDER.parents[1] / "build" / "fake_gpu"
scenarios = runpy.run_path(str(FOLDER / "host_scenarios.py"))


def fake_gpu():
    """The fake GPU, built against the running TensorFlow; as long as it is the same, once."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"the fake GPU needs a C++ compiler, and there is no {compiler[0]}")
    source = FOLDER / "fake_gpu.cc"
    include = [f.replace("-I", "-isystem", 1) for f in tf.sysconfig.get_compile_flags()]
    flags = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", *include]
    command = [*compiler, *flags, "-shared", str(source), *tf.sysconfig.get_link_flags()]
    key = hashlib.sha256(" ".join(command).encode() + source.read_bytes()).hexdigest()[:16]
    library = BUILT / f"{tf.__version__}-{key}.so"
    if not library.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        partial = library.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", str(partial)], check=True)
        partial.replace(library)
    return library


@pytest.fixture(scope="module")
def outcomes():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "host_scenarios.py"), str(fake_gpu())],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.usefixtures("fresh_keras")
@pytest.mark.parametrize("name", scenarios["SCENARIOS"])
def test_beside_a_gpu(outcomes, name):
    assert "error" not in outcomes[name], outcomes[name]["error"]
    got = outcomes[name]["numbers"]
    want = scenarios["outcome"](scenarios["SCENARIOS"][name])
    assert got.keys() == want.keys()
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=1e-4, atol=1e-6, err_msg=key)
