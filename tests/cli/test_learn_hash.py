"""`twml-ops learn-hash` writes a file that `twml-ops train` takes."""

import json

import numpy as np
import pytest

from twml_ops import core
from twml_ops.cli import main

pytestmark = pytest.mark.usefixtures("bare_runs")


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["label,a,b"]
    for a, b in rng.zipf(1.4, (800, 2)):
        lines.append(f"{int(rng.random() < 0.2 + 0.5 * (a % 2))},x{a},y{b}")
    (tmp_path / "some.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{tmp_path}/some.csv"


def test_a_run_with_the_file_trains_and_exports(source, tmp_path, capsys):
    hashed, run = tmp_path / "hash.npz", tmp_path / "run"
    main(["learn-hash", "--data", source, "--out", str(hashed), "--ratio", "4"])
    assert "2 fields" in capsys.readouterr().out
    options = ["--set", f"learned_hash={hashed}", "--epochs", "1", "--no-refit"]
    main(["train", "--data", source, "--model", "dlrm", *options, "--out", str(run)])
    assert json.loads((run / "metrics.json").read_text())["auc"] > 0.5
    main(["export", str(run), str(tmp_path / "scorer"), "--format", "scorer"])
    assert core.Scorer.load(tmp_path / "scorer").inputs


def test_data_without_categories_are_refused(tmp_path, capsys):
    (tmp_path / "x.svm").write_text("1 2:1\n-1 3:1\n")
    with pytest.raises(SystemExit):
        main(["learn-hash", "--data", f"libsvm:{tmp_path}/x.svm", "--out", str(tmp_path / "h")])
    assert "has no categories" in capsys.readouterr().err
    assert not (tmp_path / "h").exists()
