"""What is searched follows from the options of a model."""

import pytest

from twml_ops import models
from twml_ops.training.config import RunConfig
from twml_ops.training.model_options import OptionSpace, check_options

MODEL = """
from collections.abc import Sequence
from typing import Literal

def build(
    schema,
    dataset,
    *,
    units: int = 3,
    hidden: Sequence[int] = (7,),
    dropout: float = 0.9,
    linear_l2: float = 0.0,
    scale: float = 2,
    offset: float = 0.0,
    cross: bool = True,
    combiner: Literal["sum", "mean"] = "mean",
    rank: int | None = None,
    max_rows: int = 100,
):
    raise NotImplementedError
"""


class Extreme:
    """Draws the lowest or the highest value, or the first or the last one."""

    def __init__(self, high):
        self.high = high

    def suggest_float(self, name, low, high, *, log):
        assert low > 0 or not log
        return high if self.high else low

    suggest_int = suggest_float

    def suggest_categorical(self, name, choices):
        return choices[-1 if self.high else 0]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "m.py"
    file.write_text(MODEL)
    return RunConfig("", model=f"{file}:build", learning_rate=0.04)


def test_ranges_follow_from_name_type_and_default(own):
    space = OptionSpace(own, True)
    low, high = (space.suggest(Extreme(end)) for end in (False, True))
    assert low.learning_rate == pytest.approx(0.004)
    assert high.learning_rate == pytest.approx(0.4)
    assert low.model_options == {
        **{"units": 1, "hidden": [32], "dropout": 0.0, "linear_l2": 0.0, "scale": 0.2},
        **{"cross": False, "combiner": "sum"},
    }
    assert high.model_options == {
        **{"units": 12, "hidden": [7], "dropout": 0.9, "linear_l2": 1.0, "scale": 20.0},
        **{"cross": True, "combiner": "mean"},
    }


def test_the_first_trial_has_the_defaults_of_the_model(own):
    space = OptionSpace(own, True)
    config = space.configuration(space.defaults())
    assert config.learning_rate == own.learning_rate
    assert config.model_options == {
        **{"units": 3, "hidden": [7], "dropout": 0.9, "linear_l2": 0.0, "scale": 2},
        **{"cross": True, "combiner": "mean"},
    }


def test_given_options_are_not_searched(own):
    given = RunConfig("", model=own.model, learning_rate=0.04, model_options={"units": 5})
    space = OptionSpace(given, False)
    assert "units" not in space.values
    config = space.suggest(Extreme(True))
    assert (config.model_options["units"], config.learning_rate) == (5, 0.04)


@pytest.mark.parametrize("name", models.names())
def test_every_model_can_be_searched_from_its_defaults(name):
    config = RunConfig("", model=name, learning_rate=0.04)
    space = OptionSpace(config, True)
    assert "learning_rate" in space.values
    for values in space.values.values():
        if values.choices:
            assert values.default in values.choices
        else:
            assert values.low <= values.default <= values.high
    for drawn in (space.configuration(space.defaults()), space.suggest(Extreme(True))):
        check_options(name, models.get(name), drawn.model_options)
