"""The example computes the same weights on each target."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
example = importlib.import_module("examples.one_model_three_targets")


@pytest.mark.slow
def test_targets_agree(tmp_path):
    cpu, mirrored = str(tmp_path / "cpu.npz"), str(tmp_path / "mirrored.npz")
    example.main(["--target", "cpu", "--out", cpu])
    example.main(["--target", "mirrored", "--out", mirrored, "--compare", cpu])
    example.main(["--target", "tpu-host", "--compare", cpu])
    with np.load(cpu) as weights:
        changed = {name: weights[name] + 0.1 for name in weights}
    np.savez(tmp_path / "changed.npz", **changed)
    with pytest.raises(SystemExit, match="weights differ by 0.1"):
        example.main(["--target", "cpu", "--compare", str(tmp_path / "changed.npz")])
