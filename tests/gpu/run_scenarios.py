"""Runs scenarios with the simulated GPU, and prints the outcome of each as JSON.

python -m tests.gpu.run_scenarios LIBRARY [SCENARIO ...]
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


def main(library, *names):
    load_gpu(library)
    outcomes = {}
    for name in names or ORDER:
        try:
            outcomes[name] = {"numbers": run_scenario(name)}
        except (Exception, pytest.fail.Exception):
            outcomes[name] = {"error": traceback.format_exc()[-4000:]}
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
