"""The build of the CUDA library refuses kernels that round differently from CPUs."""

import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools import cuda_library, cuda_wheel  # noqa: E402
from twml_ops.ops._cuda_library import find_library  # noqa: E402

PTX = """
.visible .entry _Z6kernel{rule}(
    .param .u64 p
)
{{
    {instruction} %f1, %f2;
}}
"""


@pytest.mark.parametrize(
    "instruction", ["sqrt.approx.f32", "div.full.f32", "rcp.approx.ftz.f32", "add.ftz.f32"]
)
def test_inexact_instructions_are_found(instruction):
    ptx = PTX.format(rule="UpdateRuleE2E", instruction=instruction)
    ptx += PTX.format(rule="Sum", instruction="sqrt.rn.f32")
    found = cuda_library.inexact_instructions(ptx)
    assert found == {"_Z6kernelUpdateRuleE2E": {instruction}}
    assert not cuda_library.inexact_instructions(
        PTX.format(rule="UpdateRuleE5E", instruction=instruction)
    )


@pytest.mark.parametrize("instruction", ["sqrt.rn.f32", "fma.rn.f32", "div.rn.f32"])
def test_rounded_instructions_are_accepted(instruction):
    assert not cuda_library.inexact_instructions(PTX.format(rule="", instruction=instruction))


def test_the_wheel_of_the_library_is_found_when_it_is_installed(tmp_path, monkeypatch):
    wheel = cuda_wheel.build(Path(find_system_library()), tmp_path / "dist")
    assert wheel.name.startswith("twml_ops_cuda-")
    assert "-py3-none-manylinux_2_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delenv("TWML_OPS_CUDA_LIBRARY", raising=False)
    found = find_library(tmp_path)
    assert found == tmp_path / "site" / "twml_ops_cuda" / "libtwml_cuda.so"


def find_system_library():
    """Any shared library stands for that of the kernels."""
    import twml_ops._core

    return twml_ops._core.__file__
