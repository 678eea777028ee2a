"""The benchmark of GPUs runs from end to end."""

import json
import tempfile
from pathlib import Path

import pytest
import typer

from benchmarks import gpu
from benchmarks.contender import FORWARD, RULES, TWML_OPS
from tests.gpu.scenario import has_gpu, scenario


@scenario
def the_benchmark_of_gpus_measures_every_task():
    with tempfile.TemporaryDirectory() as folder:
        if not has_gpu():
            with pytest.raises(typer.BadParameter, match="no GPU"):
                gpu.main(quick=True, rounds=1, out=Path(folder))
            return {}
        gpu.main(quick=True, rounds=1, out=Path(folder))
        results = json.loads((Path(folder) / "results.json").read_text())
        text = (Path(folder) / "results.md").read_text()
    kernels = results["kernels"]
    assert kernels["bandwidth"] > 0
    for task in (FORWARD, *RULES):
        for ids in gpu.QUICK_SKEWS:
            found = kernels["times"][task][ids]
            assert {TWML_OPS, gpu.ON_HOST} <= set(found), (task, kernels["skipped"][task])
            assert all(t["median"] > 0 for t in found.values())
            assert f"## {task}, {ids} ids" in text
    assert "TF sparse_dense_matmul" in kernels["times"][FORWARD]["uniform"], kernels["skipped"]
    for place in ("host", "GPU"):
        assert results["model"][place]["wrong"] == {}
        assert results["model"][place]["times"]["adagrad"]["8"]
    return {}
