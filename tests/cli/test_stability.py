"""Repeated synchronous runs give exactly the same loss; Hogwild runs may differ."""

import json

import numpy as np
import pytest

from twml_ops.cli import main

pytestmark = pytest.mark.usefixtures("bare_runs")


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(600):
        ids = np.sort(rng.choice(np.arange(1, 40), 5, replace=False))
        label = int(rng.random() < (0.8 if 7 in ids else 0.3))
        lines.append(f"{label} " + " ".join(f"{i}:1" for i in ids))
    path = tmp_path / "some.libsvm"
    path.write_text("\n".join(lines) + "\n")
    return f"libsvm:{path}?dim=40"


def test_synchronous_runs_do_not_differ(source, capsys):
    main(["stability", "--data", source, "--runs", "2", "--batch-size", "32", "--json"])
    synchronous, hogwild = json.loads(capsys.readouterr().out)
    assert (synchronous["name"], hogwild["name"]) == ("synchronous", "hogwild")
    assert len(set(synchronous["losses"])) == 1
    assert len(hogwild["losses"]) == 2
    assert all(0 < loss < 1 for loss in synchronous["losses"] + hogwild["losses"])


def test_the_spread_is_printed(source, capsys):
    main(["stability", "--data", source, "--runs", "2", "--batch-size", "32"])
    out = capsys.readouterr().out
    assert "synchronous" in out
    assert "spread 0.00e+00" in out
    assert "hogwild" in out


def test_one_run_is_too_few(source, capsys):
    with pytest.raises(SystemExit) as e:
        main(["stability", "--data", source, "--runs", "1"])
    assert e.value.code == 2
    assert "runs" in capsys.readouterr().err
