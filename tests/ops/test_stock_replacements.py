"""Which ops have a replacement in stock ops, and the errors of those that have none."""

import json

import pytest

from twml_ops import optimizers
from twml_ops.cli import main
from twml_ops.distribute.parameter_server import Cluster, HybridTrainer
from twml_ops.distribute.parameter_server.cluster import start_server
from twml_ops.ops import _library, stock

if not _library.is_native():
    pytest.skip("there is no op library to compare with", allow_module_level=True)

LIBRARY = _library.load()
REGISTERED = sorted(
    name
    for name in dir(LIBRARY)
    if name.startswith("twml_") and not name.endswith("_eager_fallback")
)


@pytest.fixture
def fallback(monkeypatch):
    """Runs the test as in a process without an op library."""
    monkeypatch.setattr(_library.library, "loaded", stock.library)


@pytest.mark.parametrize("name", REGISTERED)
def test_every_op_of_the_library_has_a_replacement_or_a_reason(name):
    assert hasattr(stock.library, name) != (name in stock.LIBRARY_ONLY)


def test_reasons_are_given_for_existing_ops_only():
    assert set(stock.LIBRARY_ONLY) <= set(REGISTERED)


@pytest.mark.parametrize("name", sorted(stock.LIBRARY_ONLY))
def test_an_op_without_a_replacement_is_refused_with_its_reason(name):
    with _library.library.override(stock.library), pytest.raises(NotImplementedError) as error:
        getattr(_library.library, name)
    assert str(error.value).startswith(f"{name} is not among the active stock ops")
    assert stock.LIBRARY_ONLY[name] in str(error.value)


def test_an_op_without_a_static_form_is_refused_by_name():
    static = _library.static_shapes.library
    with (
        _library.library.override(static),
        pytest.raises(NotImplementedError, match="static shapes"),
    ):
        _library.library.twml_csr_from_indices  # noqa: B018


def test_hybrid_training_is_refused_on_stock_ops(fallback):
    telling = "needs the op library of twml_ops, but stock TensorFlow ops replace it"
    cluster = Cluster(["127.0.0.1:1"], ["127.0.0.1:2"])
    with pytest.raises(ImportError, match=f"^HybridTrainer {telling}"):
        HybridTrainer(lambda: None, optimizers.SGD(0.1), "mse", cluster=cluster)
    with pytest.raises(ImportError, match=f"^Training with parameter servers {telling}"):
        cluster.connect(1)
    with pytest.raises(ImportError, match=f"^A parameter server {telling}"):
        start_server(cluster)


def test_the_command_refuses_hybrid_training_on_stock_ops_in_one_line(
    fallback, monkeypatch, tmp_path, capfd
):
    addresses = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    config = {"cluster": addresses, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n" * 10)
    with pytest.raises(SystemExit):
        main(["train", "--data", f"libsvm:{tmp_path}/a.svm", "--out", str(tmp_path / "run")])
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("twml-ops: Training with parameter servers needs the op library")
