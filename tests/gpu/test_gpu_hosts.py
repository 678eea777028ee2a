"""With a GPU, tables and their slots are on the host and the dense part is on the GPU.

The GPU is simulated, see fake_gpu.cc. A process cannot unload it, so run_scenarios.py runs the
scenarios in another process. This process, without a GPU, computes the expected numbers.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tests.cuda.build import emulated_library
from tests.gpu.run_scenarios import IN_OWN_PROCESS, ORDER, SCENARIOS, run_scenario
from tests.gpu.scenario import REAL_GPU
from tests.pairwise import ONE_TF, SLOW

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "gpu"
BUILT = ROOT / "build" / "fake_gpu"


def fake_gpu():
    """Builds the simulated GPU for the running TensorFlow, unless it is built already."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"the simulated GPU needs a C++ compiler, and {compiler[0]} is not installed")
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


# It runs all of benchmarks/gpu.py, for 20 s.
OF_THE_BENCHMARK = {"the_benchmark_of_gpus_measures_every_task"}
# Of our kernels and their numbers; on both versions others place, copy, save and load the same, and
# the tests of these layers run with the simulated GPU (GPU_IN_KERAS_2 of the Makefile).
OF_KERNELS = {
    "a_block_places_the_whole_sparse_mlp",
    "a_checkpoint_goes_on_where_another_placement_ended",
    "a_functional_model_fits_eagerly",
    "a_model_that_is_built_by_fit_fits_eagerly",
    "a_step_with_all_state_on_the_gpu_moves_the_batch_only",
    "adagrad_trains",
    "averages_of_tables_on_the_gpu_are_those_of_tables_on_the_host",
    "calibrations_fit_and_calibrate",
    "discretizers_adapt_and_discretize",
    "discretizers_on_the_gpu_give_the_buckets_of_the_host",
    "files_and_checkpoints_of_features_move_between_the_host_and_the_gpu",
    "grouped_tables_cross_and_factorization_machine_train",
    "grouped_tables_on_the_gpu_are_multiplied_in_one_op_and_train_like_those_on_the_host",
    "max_norm_on_the_gpu_trains_like_on_the_host",
    "max_norm_trains",
    "max_norm_trains_on_padded_rows",
    "momentum_trains",
    "online_standardize_trains",
    "online_standardize_trains_on_sparse_tensors",
    "rowwise_adagrad_trains_by_slices",
    "stock_and_xla_ops_run_on_any_device",
    "sums_of_partitions_stay_on_the_gpu",
    "tables_partitioned_by_column_train",
    "tables_partitioned_by_row_train",
    "tables_with_the_same_batch_share_its_groups_on_each_device",
    "the_sparse_mlp_fits",
    "vectors_of_fields_stay_on_the_gpu",
}
# On the second version the training with a slot for each row and `fit` stand for these.
OF_REPLICAS = {
    "replicas_on_gpus_train_tables_on_the_host",
    "replicas_on_gpus_train_with_a_distributed_dataset",
    "replicas_on_gpus_fit_with_mixed_precision",
}


def marks_of(name):
    one_tf = name in OF_KERNELS | OF_REPLICAS
    return [SLOW] * (name in OF_THE_BENCHMARK) + [ONE_TF] * one_tf


def outcomes_in(text):
    """The outcomes that run_scenarios.py has printed."""
    found = {}
    for line in text.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def recorded(folder):
    """The outcomes in the files `*.jsonl` of a folder, which were printed on another machine."""
    found = {}
    for path in sorted(Path(folder).glob("*.jsonl")):
        found |= outcomes_in(path.read_text())
    return found


@pytest.fixture(scope="module")
def outcomes(request):
    """The outcome of each scenario of which a test was selected."""
    if "TWML_GPU_OUTCOMES" in os.environ:
        return recorded(os.environ["TWML_GPU_OUTCOMES"])
    asked = {i.callspec.params["name"] for i in request.session.items if i.path == request.path}
    here, alone = ([n for n in names if n in asked] for names in (ORDER, IN_OWN_PROCESS))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    if os.environ.get("TWML_REAL_GPU") == "1":  # which this process does not see: `make test-gpu`
        gpu = REAL_GPU
        env.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        gpu = str(fake_gpu())
        env["TWML_OPS_CUDA_LIBRARY"] = str(emulated_library())
    found = {}
    for names in filter(None, (here, alone)):
        done = forked.run(
            ["-m", "tests.gpu.run_scenarios", gpu, *names],
            env=env,
            capture_output=True,
            text=True,
        )
        found |= outcomes_in(done.stdout)
        if done.returncode != 0:  # in the first scenario without an outcome, or after the last one
            ended = {"error": f"exit status {done.returncode}: {done.stderr[-3000:]}"}
            lost = [n for n in names if n not in found] or names[-1:]
            found |= dict.fromkeys(lost, ended)
    return found


def is_real_gpu():
    return "TWML_GPU_OUTCOMES" in os.environ or os.environ.get("TWML_REAL_GPU") == "1"


# A card and a CPU differ in the last bits of TensorFlow's own ops, such as `tanh`, and a table of
# bfloat16 can then round to the next number, which is 2^-8 of the value away.
ROUNDED = {"float32": (1e-4, 1e-6), "bfloat16": (2**-6, 1e-5)}


def tolerances(name, key):
    rounded = is_real_gpu() and (
        "bfloat16" in f"{name} {key}"
        or name.startswith(("grouped_tables_cross", "grouped_tables_on_the_gpu"))
    )
    return ROUNDED["bfloat16" if rounded else "float32"]


@pytest.mark.usefixtures("fresh_keras")
@pytest.mark.parametrize("name", [pytest.param(n, marks=marks_of(n)) for n in SCENARIOS])
def test_with_a_gpu(outcomes, name):
    if name not in outcomes and "TWML_GPU_OUTCOMES" in os.environ:
        pytest.skip("the scenario was not run on the other machine")
    assert "error" not in outcomes[name], outcomes[name]["error"]
    got = outcomes[name]["numbers"]
    want = run_scenario(name)
    assert got.keys() == want.keys()
    for key in want:
        rtol, atol = tolerances(name, key)
        np.testing.assert_allclose(got[key], want[key], rtol=rtol, atol=atol, err_msg=key)
