"""Which part of the training data becomes validation data."""

import pytest

from tests.trained_runs import write_libsvm
from twml_ops.data import open_source
from twml_ops.training.config import ClusterOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.trials import validation_parts


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_source(write_libsvm(tmp_path_factory.mktemp("data") / "a.svm", 300))


def test_a_share_of_the_training_data_is_taken(source):
    parts = validation_parts(RunConfig("", validation="order", validation_share=0.2), source)
    assert [part.num_examples() for part in parts] == [240, 60]


@pytest.mark.parametrize(
    "config",
    [
        RunConfig("", epochs=3),
        RunConfig("", validation="none"),
        RunConfig("", validation_share=0.3),  # 90 examples, and the method is not given
    ],
)
def test_there_may_be_no_validation_data(source, config):
    assert validation_parts(config, source) is None


@pytest.mark.parametrize("cluster", [None, ClusterOptions()])
def test_auto_takes_validation_data_if_there_are_enough_examples(source, cluster):
    config = RunConfig("", validation_share=0.4, cluster=cluster)
    assert validation_parts(config, source) is not None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RunConfig("", epochs=3, validation="order"), "--epochs fixes the number of epochs"),
        (RunConfig("", validation="time"), "--validation time: .* the schema has no time"),
        (RunConfig("", validation="last"), "--validation last: method must be one of auto, time"),
        (RunConfig("", validation="order", validation_share=2), "share must be between 0 and 1"),
    ],
)
def test_options_that_do_not_fit_are_errors_of_the_user(source, config, message):
    with pytest.raises(UserError, match=message):
        validation_parts(config, source)
