"""The configuration of a file, overridden by options."""

import json

import pytest

from twml_ops.cli import main
from twml_ops.cli.configure import configure
from twml_ops.training.config import (
    DEFAULT,
    FORMAT,
    FORMAT_KEY,
    PEER_OPTIONS,
    ClusterOptions,
    RunConfig,
)
from twml_ops.training.errors import UserError


@pytest.fixture
def write(tmp_path):
    def write(**values):
        path = tmp_path / "run.json"
        path.write_text(json.dumps(values))
        return path

    return write


def test_without_a_file_the_options_and_the_defaults_count():
    given = {"data": "flights", "eval_": "x", "model": "dcn", "mode": "sync", "checkpoint_keep": 5}
    config = configure(None, given, ["units=8"])
    options, of_cluster = {"units": 8}, ClusterOptions(mode="sync", checkpoint_keep=5)
    assert config == RunConfig("flights", "x", "dcn", model_options=options, cluster=of_cluster)
    assert configure(None, {"data": "flights"}, []).model == DEFAULT


def test_options_override_the_file(write):
    options = {"units": 8, "dropout": 0.1}
    file = write(data="a", model="dcn", epochs=3, seed=7, model_options=options)
    config = configure(file, {"seed": 0, "batch_size": 9, "out": "x"}, ["units=4"])
    assert (config.data, config.epochs, config.seed, config.batch_size) == ("a", 3, 0, 9)
    assert config.model_options == {"units": 4, "dropout": 0.1}


def test_the_folder_of_a_run_is_a_file_of_it(write, tmp_path):
    file = write(**{FORMAT_KEY: FORMAT}, data="a", seed=7, weights=3)
    assert configure(tmp_path, {}, []) == configure(file, {}, [])
    assert configure(tmp_path, {}, []).seed == 7


def test_a_file_may_lack_the_data(write):
    assert configure(write(seed=7), {"data": "b"}, []).data == "b"


def test_another_model_has_its_own_options(write):
    file = write(data="a", model="sparse_mlp", model_options={"units": 8})
    assert configure(file, {"model": "dcn"}, []).model_options == {}
    assert configure(file, {"model": "sparse_mlp"}, []).model_options == {"units": 8}


def test_epochs_and_validation_replace_each_other(write):
    assert configure(write(data="a", validation="order"), {"epochs": 3}, []).validation == "auto"
    assert configure(write(data="a", epochs=3), {"validation": "order"}, []).epochs is None


def test_a_run_of_other_versions_is_repeated_with_a_warning(write, capsys):
    configure(write(**{FORMAT_KEY: FORMAT}, data="a", versions={"tensorflow": "1.0"}), {}, [])
    assert "the run was made by tensorflow 1.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object, got list"),
        ('{"seed": 1}', "--data is missing"),
        ('{"data": "a", "seeds": 1}', "seeds: unknown field"),
        ('{"data": "a", "model_options": {"unit": 1}}', "name the model whose options"),
        (
            '{"data": "a", "model": "sparse_mlp", "model_options": {"unit": 1}}',
            "sparse_mlp has no such option",
        ),
        ('{"data": "a", "model_options": 3}', "model_options: expected an object, got 3"),
    ],
)
def test_wrong_files_are_errors_of_the_user(tmp_path, text, message):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(UserError) as error:
        configure(tmp_path / "c.json", {}, [])
    assert message in str(error.value)


def test_a_missing_file_is_an_error_of_the_user(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        configure(tmp_path / "c.json", {}, [])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--mode", "sync"),
        ("--partition-axis", "row"),
        ("--wire-dtype", "bfloat16"),
        ("--gradient-wire-dtype", "int8"),
        ("--exchange-every", "4"),
        ("--steps-per-execution", "4"),
        ("--timeout", "60"),
    ],
)
def test_peers_refuse_the_options_of_servers(option, value, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(PEER_OPTIONS, "{}")
    words = ["train", "--data", "flights", "--out", str(tmp_path / "run"), option, value]
    with pytest.raises(SystemExit):
        main(words)
    assert f"{option}: is an option of parameter servers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
