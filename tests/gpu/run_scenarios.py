"""`python -m tests.gpu.run_scenarios LIBRARY`: runs all scenarios with the simulated GPU.

Prints the outcome of every scenario as JSON.
"""

import json
import os
import sys
import traceback

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.gpu import (
    device_scenarios,
    layer_scenarios,
    model_scenarios,
    op_scenarios,
    optimizer_scenarios,
)
from tests.gpu.scenario import SCENARIOS, load_gpu, run_scenario

MODULES = (device_scenarios, layer_scenarios, model_scenarios, op_scenarios, optimizer_scenarios)


def main(library):
    load_gpu(library)
    outcomes = {}
    for name in SCENARIOS:
        try:
            outcomes[name] = {"numbers": run_scenario(name)}
        except (Exception, pytest.fail.Exception):
            outcomes[name] = {"error": traceback.format_exc()[-4000:]}
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1])
