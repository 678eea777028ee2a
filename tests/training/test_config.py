"""The configuration of a run and its JSON form."""

import json

import pytest

from twml_ops.training.config import FORMAT, FORMAT_KEY, ClusterOptions, RunConfig
from twml_ops.training.errors import UserError


@pytest.mark.parametrize(
    "config",
    [
        RunConfig("flights"),
        RunConfig("a", "b", "dcn", "ftrl", 0.5, 32, 2, 7),
        RunConfig("a", cluster=ClusterOptions(mode="sync", timeout=9)),
    ],
)
def test_json_round_trip(config):
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_a_call_has_whole_exchanges():
    for every, steps, together in ((1, 4, 4), (8, 4, 8), (3, 4, 6)):
        options = ClusterOptions(exchange_every=every, steps_per_execution=steps)
        arguments = options.trainer_arguments()
        assert (arguments["exchange_every"], arguments["steps_per_execution"]) == (every, together)


def test_run_file_of_an_earlier_version_is_read():
    run = {
        FORMAT_KEY: FORMAT,
        "data": "flights",
        "eval": None,
        "model": "sparse_mlp",
        "optimizer": "adagrad",
        "learning_rate": 0.04,
        "batch_size": 256,
        "epochs": 4,
        "seed": 1,
        "command": "twml-ops train --data flights",
        "train_examples": 258579,
        "schema": {"continuous": ["dep_time"]},
    }
    assert RunConfig.from_json(run) == RunConfig(
        "flights", model="sparse_mlp", learning_rate=0.04, batch_size=256, epochs=4, seed=1
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "data: missing, expected a string"),
        ({"data": 3}, "data: expected a string, got 3"),
        ({"data": "x", "epoch": 3}, "epoch: unknown field, expected one of data, eval, model"),
        ({"data": "x", "epochs": 1.5}, "epochs: expected an integer or null, got 1.5"),
        ({"data": "x", "seed": True}, "seed: expected an integer, got True"),
        ({"data": "x", "learning_rate": "1"}, "learning_rate: expected a number or null, got '1'"),
        ({"data": "x", "cluster": 1}, "cluster: expected an object or null, got 1"),
        (
            {"data": "x", "cluster": {"mode": "fast"}},
            "cluster.mode: expected one of sync, async, hogwild, got 'fast'",
        ),
    ],
)
def test_errors_name_the_field_and_what_was_expected(values, message):
    with pytest.raises(UserError) as error:
        RunConfig.from_json(values)
    assert message in str(error.value)


def test_an_integer_is_a_number():
    assert RunConfig.from_json({"data": "x", "learning_rate": 1}).learning_rate == 1
