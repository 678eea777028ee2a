"""A fitted classifier, and the run of the command on a Parquet file of the same rows."""

import pytest

from tests.classifier.frames import TIME_FEATURES, USES, clicks
from twml_ops import Classifier
from twml_ops.cli import main


@pytest.fixture(scope="session")
def frame():
    return clicks()


@pytest.fixture(scope="session")
def fitted(frame):
    """Tests only read it."""
    options = {"options": {"units": 8}, "max_epochs": 2, "time_features": TIME_FEATURES}
    return Classifier("sparse_mlp", **options).fit(frame, **USES)


@pytest.fixture(scope="session")
def command_run(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    frame.to_parquet(folder / "clicks.parquet")
    options = ["--model", "sparse_mlp", "--set", "units=8", "--max-epochs", "2"]
    options += ["--time-features", ",".join(TIME_FEATURES)]
    for name, value in USES.items():
        options += [f"--{name}", ",".join([value] if isinstance(value, str) else value)]
    data, out = str(folder / "clicks.parquet"), folder / "run"
    main(["train", "--data", data, "--out", str(out), *options])
    return out
