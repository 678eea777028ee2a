"""The experiment runs and writes its table and its plot."""

import json

import numpy as np
import pytest

from benchmarks import large_batches


@pytest.mark.slow
def test_every_batch_size_and_scaling_has_a_loss(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    lines = [f"{rng.integers(2)} {i % 50 + 1}:1 {i % 7 + 60}:2.5" for i in range(400)]
    path = tmp_path / "small.libsvm"
    path.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(large_batches, "SIZES", (64, 256))
    found = large_batches.losses(f"libsvm:{path}?dim=80", epochs=1, seed=0, sizes=(64, 256))
    assert found["examples"] == 320
    losses = found["losses"]
    assert losses["none"][64] == losses["linear"][64]
    assert all(0 < loss < 10 for by_size in losses.values() for loss in by_size.values())

    document = tmp_path / "large_batches.md"
    document.write_text("# Large batches\n")
    about = large_batches.machine.describe("python -m benchmarks.large_batches small")
    large_batches.write({"epochs": 1, "machine": about, "sources": {"small": found}}, tmp_path)
    assert "| unscaled rate |" in document.read_text()
    assert (tmp_path / "img" / "large_batches.png").exists()
    assert json.loads((tmp_path / "large_batches.json").read_text())["epochs"] == 1
