"""Runs scenarios with a GPU, and prints the outcome of each as a line of JSON.

    python -m tests.gpu.run_scenarios LIBRARY [SCENARIO ...]

LIBRARY is the simulated GPU, or `real` for a card. A name of a module, such as
`device_scenarios`, stands for its scenarios. What is printed on a machine with a card can be
checked on another one: see `recorded` in test_gpu_hosts.py.
"""

import json
import os
import sys
import traceback

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.gpu import (
    benchmark_scenarios,
    device_scenarios,
    feature_scenarios,
    layer_scenarios,
    model_scenarios,
    op_scenarios,
    optimizer_scenarios,
    parameter_server_scenarios,
    replica_scenarios,
)
from tests.gpu.scenario import SCENARIOS, load_gpu, run_scenario

# The CUDA kernels are loaded for the first table on a GPU, and stay: models and layers come first.
MODULES = (
    model_scenarios,
    layer_scenarios,
    replica_scenarios,
    op_scenarios,
    optimizer_scenarios,
    device_scenarios,
    feature_scenarios,
    benchmark_scenarios,
)
ORDER = [n for m in MODULES for n, s in SCENARIOS.items() if s.__module__ == m.__name__]
# TensorFlow 2.15 cannot connect to a cluster after it has run ops.
IN_OWN_PROCESS = [
    n for n, s in SCENARIOS.items() if s.__module__ == parameter_server_scenarios.__name__
]


def of_modules(names):
    """Replaces names of modules by the names of their scenarios."""
    for name in names:
        inside = [n for n, s in SCENARIOS.items() if s.__module__ == f"{__package__}.{name}"]
        yield from inside or [name]


def main(library, *names):
    load_gpu(library)
    for name in [*of_modules(names)] or ORDER:
        try:
            outcome = {"numbers": run_scenario(name)}
        except (Exception, pytest.fail.Exception):
            outcome = {"error": traceback.format_exc()[-4000:]}
        # At once: a scenario that ends the process must not take the others' outcomes with it.
        print(json.dumps({name: outcome}), flush=True)
    if set(names) & set(IN_OWN_PROCESS):
        # TensorFlow cannot end the servers of a process: at its end their threads can abort it.
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
