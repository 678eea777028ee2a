"""Small data files in the readers' formats, and runs trained on them."""

import contextlib

import numpy as np
import pytest

from twml_ops.cli import main

_without = None  # what runs are written without, in a module with `bare_runs`


def _leave_out(patch):
    from twml_ops.report import plots, run_files

    patch.setattr(run_files, "write_saved_model", lambda path, model: None)
    patch.setattr(plots, "svg", lambda draw, *size: "data:image/svg+xml;base64,")


@pytest.fixture(scope="module")
def bare_runs():
    """Trainings write no SavedModel, and empty pictures: a third of the time of a small one.

    For modules of what a training learns, says and keeps, whose tests read neither.
    """
    global _without
    with pytest.MonkeyPatch.context() as _without:
        _leave_out(_without)
        yield
    _without = None


@contextlib.contextmanager
def whole_runs():
    """Trainings in the block write everything, also in a module with `bare_runs`."""
    if _without is None:
        yield
        return
    _without.undo()
    try:
        yield
    finally:
        _leave_out(_without)


def write_libsvm(path, n, seed=0, dim=8):
    """Examples whose label is mostly the sign of a linear function."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        ids = np.sort(rng.choice(dim, 4, replace=False))
        label = 1 if (ids < dim // 2).sum() + rng.normal(0, 0.5) > 2 else -1
        lines.append(f"{label:+d} " + " ".join(f"{i + 1}:{rng.random() + 0.5:.3f}" for i in ids))
    path.write_text("\n".join(lines) + "\n")
    return f"libsvm:{path}"


def write_clicks(path):
    """A CSV file of 600 examples with two categories and a number."""
    rng = np.random.default_rng(0)
    rows = [(rng.integers(9), rng.integers(7), rng.gamma(2.0)) for _ in range(600)]
    lines = [f"{int(rng.random() < (a + b) / 16)},a{a},b{b},{x:.3f}" for a, b, x in rows]
    path.write_text("\n".join(["label,site,ad,price", *lines]))
    return f"csv:{path}"


def write_criteo(path, n, seed=0):
    """Criteo lines with missing fields, whose label depends on I1 and C1."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        label = int(rng.random() < 0.3)
        numbers = rng.integers(0, 50, 13) + 20 * label
        tokens = rng.integers(0, 9, 26) + 100 * np.arange(26)
        tokens[0] += 10 * label
        fields = [str(x) for x in numbers] + [f"{x:08x}" for x in tokens]
        fields = [f if rng.random() < 0.9 else "" for f in fields]
        lines.append("\t".join([str(label), *fields]))
    path.write_text("\n".join(lines) + "\n")
    return f"criteo:{path}"


SPARSE_MLP = ("--model", "sparse_mlp", "--optimizer", "lazy_adam")


def train(data, out, *options):
    main(["train", "--data", data, "--out", str(out), "--epochs", "2", *options])
    return out


@pytest.fixture(scope="session")
def libsvm(tmp_path_factory):
    return write_libsvm(tmp_path_factory.mktemp("data") / "a.svm", 600)


@pytest.fixture(scope="session")
def libsvm_run(libsvm, tmp_path_factory):
    with whole_runs():
        return train(libsvm, tmp_path_factory.mktemp("runs") / "libsvm")


@pytest.fixture(scope="session")
def fields_run(tmp_path_factory):
    """A run of a model that takes the layout "fields"."""
    data = write_criteo(tmp_path_factory.mktemp("data") / "f.tsv", 500)
    with whole_runs():
        return train(data, tmp_path_factory.mktemp("runs") / "fields", "--model", "deepfm")


@pytest.fixture(scope="session")
def criteo_run(tmp_path_factory):
    data = write_criteo(tmp_path_factory.mktemp("data") / "c.tsv", 500)
    with whole_runs():
        return train(data, tmp_path_factory.mktemp("runs") / "criteo", *SPARSE_MLP)
