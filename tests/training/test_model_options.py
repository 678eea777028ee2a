"""Models of the user, and the options of models."""

import pytest

from twml_ops import models
from twml_ops.training.errors import UserError
from twml_ops.training.model_options import builder_of, check_options, options_of, parse_options

FILE = '''
from collections.abc import Sequence

def build(schema, dataset, *, units: int, hidden: "Sequence[int]" = (4,), gain=0.5, flag=False):
    """Builds nothing.

    Args:
        schema: the features.
        units: number of
            outputs.
        gain: a factor.
    """

number = 3
'''


@pytest.fixture
def reference(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return f"{path}:build"


@pytest.mark.parametrize("name", models.names())
def test_every_option_of_a_packaged_model_has_a_default_and_a_description(name):
    options = options_of(models.get(name))
    assert "units" in options or name == "logistic"
    for option in options.values():
        assert "=..." not in str(option)
        assert option.help


def test_options_are_the_keyword_only_parameters(reference):
    options = options_of(builder_of(reference))
    assert [str(o) for o in options.values()] == [
        *("units=...", "hidden=4", "gain=0.5", "flag=false"),
    ]
    assert options["units"].help == "number of outputs."
    assert options["gain"].type is float
    assert options["hidden"].help == ""


def test_options_are_parsed_by_their_types(reference):
    texts = ["units=8", "hidden=3,2", "gain=2", "flag=true", "units=9"]
    parsed = parse_options("mine", builder_of(reference), texts)
    assert parsed == {"units": 9, "hidden": [3, 2], "gain": 2.0, "flag": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("units", "--set units: expected NAME=VALUE"),
        ("unit=3", "--set unit: mine has no such option; its options are units=..., hidden=4"),
        ("dataset=3", "--set dataset: mine has no such option"),
        ("units=x", "--set units=x: expected an integer, got 'x'"),
        ("hidden=1,x", "expected integers separated by commas, got '1,x'"),
    ],
)
def test_wrong_options_are_errors_of_the_user(reference, text, message):
    with pytest.raises(UserError) as error:
        parse_options("mine", builder_of(reference), [text])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "mine needs --set units=..."),
        ({"units": 3, "unit": 3}, "mine has no such option"),
        ({"units": "3"}, "model_options.units: expected an integer, got '3'"),
    ],
)
def test_options_of_a_file_are_checked(reference, values, message):
    with pytest.raises(UserError) as error:
        check_options("mine", builder_of(reference), values)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nosuch", "unknown model 'nosuch': expected one of dcn"),
        ("{folder}/none.py:build", "expected FILE.py:NAME of a function that builds a model"),
        ("{folder}/mine.py:none", "has no none"),
        ("{folder}/mine.py:number", "expected a function, got int"),
        ("{folder}/wrong.py:build", "cannot be imported: NameError: name 'undefined' is not"),
    ],
)
def test_a_model_that_cannot_be_found_is_an_error_of_the_user(reference, tmp_path, model, message):
    (tmp_path / "wrong.py").write_text("undefined\n")
    with pytest.raises(UserError) as error:
        builder_of(model.format(folder=tmp_path))
    assert message in str(error.value)


def test_a_packaged_model_names_an_option_that_it_lacks():
    with pytest.raises(TypeError, match=r"logistic\(\) got an unexpected keyword argument 'units'"):
        models.logistic(None, None, units=3)
