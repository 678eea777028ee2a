"""XLA's compiler for GPUs, if its packages are installed: `make test-gpu-check`."""

import dataclasses
import importlib.util
import io
import json

import pytest
from rich.console import Console

from tests.tpu.test_step import Picks, model
from twml_ops import tpu
from twml_ops.cli import main
from twml_ops.cli.compile_check import print_compile_report
from twml_ops.tpu import compile_subprocess
from twml_ops.tpu.check import CompileReport
from twml_ops.tpu.chips import CHIPS, GPUS, get_chip, gpu_target_config
from twml_ops.tpu.compile_subprocess import Compiled

HAVE = all(importlib.util.find_spec(name) for name in ("jax", "jax_plugins", "nvidia")) and (
    importlib.util.find_spec("nvidia.cuda_nvcc") is not None
)
needs_compiler = pytest.mark.skipif(
    not HAVE, reason="needs twml_ops[gpu-check]: run `make test-gpu-check`"
)


def report_of(chip):
    """A report with round figures: 2 ms of operations and 4 ms of memory traffic."""
    flops, size = int(chip.flops * 0.002), int(chip.bandwidth * 0.004)
    compiled = Compiled("device", 1, flops, size, 100, 10, 20, 5, 100)
    return CompileReport(chip, chip.topology, None, compiled, [])


def printed(report):
    text = io.StringIO()
    print_compile_report(Console(file=text, width=120), report, 64)
    return text.getvalue()


@needs_compiler
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ["sparse_mlp", "dcn"])
def test_a_model_compiles_with_its_tables_in_place(name, gpu, capsys):
    main(["gpu-check", name, "--gpu", gpu, "--batch-size", "64", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["problem"] is None
    assert report["fits"]
    assert report["in_place"]
    assert report["compiled"]["devices"] == 1
    assert report["compiled"]["flops"] > 0
    assert report["seconds"] > 0
    assert report["seconds_are_lower_bound"] is False


def test_it_says_what_has_not_run_on_a_gpu_and_tpu_check_does_not():
    for chip in (*CHIPS.values(), *GPUS.values()):
        assert ("have not run on a GPU" in printed(report_of(chip))) == (chip.gpu is not None)


@pytest.mark.parametrize("chip", GPUS.values(), ids=GPUS)
def test_a_time_that_is_not_a_lower_bound_is_an_estimate(chip):
    report = report_of(chip)
    assert not report.seconds_are_lower_bound
    out = printed(report)
    assert "minimum" not in out
    assert "step, estimate" in out
    assert "4.000 ms" in out
    assert "a step may take less than the estimate" in " ".join(out.split())


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_the_time_on_a_tpu_is_a_lower_bound(chip):
    out = printed(report_of(chip))
    assert "step, minimum" in out
    assert "estimate" not in out


def test_a_step_that_does_not_fit_into_memory_is_reported():
    report = report_of(GPUS["L4"])
    assert report.fits
    small = dataclasses.replace(report, chip=report.chip._replace(hbm=100))
    assert not small.fits
    assert "does not fit" in printed(small)


def test_the_description_of_a_gpu_has_its_figures():
    text = gpu_target_config(GPUS["A100"])
    assert "cuda_compute_capability { major: 8 minor: 0 }" in text
    assert "core_count: 108" in text
    assert f"device_memory_size: {40 << 30}" in text


def test_an_unknown_gpu_is_an_error_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown chip 'K80'.*A100, H100, L4"):
        get_chip("K80")


def test_a_dynamic_model_is_reported_without_the_compiler():
    report = tpu.check(model(Picks(name="picker")), "H100", batch_size=8)
    assert report.problem.layer == "picker"
    assert not report.fits


@pytest.mark.skipif(HAVE, reason="the packages are installed")
def test_missing_packages_are_named():
    with pytest.raises(ImportError, match=r"gpu-check needs jax.*twml_ops\[gpu-check\]"):
        compile_subprocess.compile_for(b"", "1x1x1", gpu_target_config(GPUS["H100"]))
