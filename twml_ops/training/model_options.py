"""The function that builds a model, its options, and the values of them that are searched.

The options are the keyword-only parameters of the function. The annotations are their types. The
range in which an option is searched follows from its name, its type and its default, so that it
exists for models of the user as well. The defaults of the options that several models share are in
`twml_ops/models/_options.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from twml_ops import models
from twml_ops.data.tune_pipeline import load_attribute
from twml_ops.models import ModelBuilder
from twml_ops.training.config import RunConfig, format_value, has_type, parse_value, type_name
from twml_ops.training.errors import UserError


class ModelOption(NamedTuple):
    """A keyword-only parameter of a builder.

    Attributes:
        name: its name.
        type: its annotation; the type of the default if it has none.
        default: its default; `inspect.Parameter.empty` if it must be given.
        help: what the builder's docstring says about it.
    """

    name: str
    type: Any
    default: Any
    help: str

    def __str__(self) -> str:
        """The option as `--set` takes it, with its default."""
        required = self.default is inspect.Parameter.empty
        return f"{self.name}=..." if required else f"{self.name}={format_value(self.default)}"


def builder_of(model: str) -> ModelBuilder:
    """The function that builds a model.

    Args:
        model: name of a packaged model, or FILE.py:FUNCTION. The file is imported, so that classes
            that it registers with Keras can be loaded.

    Raises:
        UserError: the model is unknown, or the file cannot be imported or has no such function.
    """
    if ".py:" not in model:
        try:
            return models.get(model)
        except ValueError as e:
            raise UserError(f"{e}, or FILE.py:FUNCTION") from e
    try:
        build = load_attribute(model, "a function that builds a model")
    except ValueError as e:
        raise UserError(str(e)) from e
    except Exception as e:
        raise UserError(f"{model}: cannot be imported: {type(e).__name__}: {e}") from e
    if not callable(build):
        raise UserError(f"{model}: expected a function, got {type(build).__name__}")
    return typing.cast(ModelBuilder, build)


def options_of(build: ModelBuilder) -> dict[str, ModelOption]:
    """The options of a model by name, in the order of the parameters."""
    try:
        hints = typing.get_type_hints(build)
    except NameError:  # an annotation that only a type checker can read
        hints = {}
    helps = _documented(build)
    return {
        p.name: ModelOption(
            p.name, hints.get(p.name, type(p.default)), p.default, helps.get(p.name, "")
        )
        for p in inspect.signature(build).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }


def parse_options(model: str, build: ModelBuilder, texts: Sequence[str]) -> dict[str, Any]:
    """The options of `--set` as values.

    Args:
        model: name of the model, for messages.
        build: its builder.
        texts: NAME=VALUE each. Of several with one name the last counts.

    Raises:
        UserError: a text has another form, or names no option, or its value is of another type.
    """
    parsed = {}
    known = options_of(build)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: expected NAME=VALUE")
        option = _known(model, known, name)
        try:
            parsed[name] = parse_value(value, option.type)
        except ValueError as e:
            raise UserError(f"--set {text}: {e}") from e
    return parsed


def check_options(model: str, build: ModelBuilder, values: Mapping[str, Any]) -> None:
    """Checks the options of a configuration.

    Raises:
        UserError: an option is unknown or of the wrong type, or one without a default is missing.
    """
    known = options_of(build)
    for name, value in values.items():
        option = _known(model, known, name)
        if not has_type(value, option.type):
            raise UserError(
                f"model_options.{name}: expected {type_name(option.type)}, got {value!r}"
            )
    for option in known.values():
        if option.default is inspect.Parameter.empty and option.name not in values:
            raise UserError(f"{model} needs --set {option}")


def _known(model: str, known: Mapping[str, ModelOption], name: str) -> ModelOption:
    if name not in known:
        options = ", ".join(map(str, known.values())) or "none"
        raise UserError(f"--set {name}: {model} has no such option; its options are {options}")
    return known[name]


def _documented(build: ModelBuilder) -> dict[str, str]:
    """The entries of the section `Args` of a docstring, each on one line."""
    text = inspect.getdoc(build) or ""
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", text, re.M)
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", section[1] if section else ""):
        name, colon, about = entry.strip().partition(":")
        if colon:
            found[name.split(" ")[0]] = " ".join(about.split())
    return found


def path_of(model: str) -> Path | None:
    """The file of a model of the user; None for a packaged one."""
    return Path(model.rpartition(":")[0]) if ".py:" in model else None


LEARNING_RATE = "learning_rate"
_SIZES = ("max_rows", "categorical_bits")  # limits of the memory, not of what is learned
_WIDTHS = ("32", "64", "128", "64,32", "128,64")  # of the layers of a dense net


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of one option.

    Attributes:
        default: the value that is tried first; if it is the lower end of the range, it stands for a
            default below the range.
        low: smallest value.
        high: largest value.
        log: whether values are drawn uniformly on a logarithmic scale.
        choices: the values as text, if there is no range.
    """

    default: Any
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The values in words."""
        if self.choices:
            return " or ".join(choice or "none" for choice in self.choices)
        return f"{self.low:.4g} to {self.high:.4g}{', logarithmic' if self.log else ''}"


class Suggest(typing.Protocol):
    """The part of `optuna.Trial` that is used: functions that draw a value by name."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        """A float in [low, high]."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int:
        """An integer in [low, high]."""

    def suggest_categorical(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some texts."""


class OptionSpace:
    """The options that are searched, and their values.

    The learning rate is searched from a tenth to ten times its default. Of the options of the
    model, dropout is searched from 0 to 0.8, the strength of L2 regularization from 1e-6 to 1,
    another positive number from a tenth to ten times and an integer from a quarter to four times
    its default, the widths of dense layers among five; true or false and a choice of texts among
    their values. Options of other types, and those that limit the memory, have their defaults.

    Args:
        config: the configuration, with a learning rate. Its `model_options` are not searched.
        search_learning_rate: whether the learning rate is searched.

    Attributes:
        values: what is searched, by name.
    """

    def __init__(self, config: RunConfig, search_learning_rate: bool) -> None:
        self._config = config
        self._options = options_of(builder_of(config.model))
        self.values: dict[str, Values] = {}
        if search_learning_rate:
            assert config.learning_rate is not None
            self.values[LEARNING_RATE] = _around(float(config.learning_rate), 10)
        for option in self._options.values():
            values = None if option.name in config.model_options else _values_of(option)
            if values is not None:
                self.values[option.name] = values

    def defaults(self) -> dict[str, Any]:
        """The values that are tried first."""
        return {name: values.default for name, values in self.values.items()}

    def suggest(self, trial: Suggest) -> RunConfig:
        """A configuration whose values the trial draws."""
        return self.configuration({n: _draw(trial, n, v) for n, v in self.values.items()})

    def configuration(self, drawn: Mapping[str, Any]) -> RunConfig:
        """The configuration with drawn values, by name."""
        options = dict(self._config.model_options)
        for name, value in drawn.items():
            if name == LEARNING_RATE:
                continue
            option = self._options[name]
            if self.values[name].choices:
                options[name] = parse_value(value, option.type)
            else:  # a default below the range, an L2 of 0, is tried nevertheless
                is_default = value == self.values[name].default
                options[name] = option.default if is_default else value
        rate = drawn.get(LEARNING_RATE, self._config.learning_rate)
        return dataclasses.replace(self._config, model_options=options, learning_rate=rate)


def _draw(trial: Suggest, name: str, values: Values) -> Any:
    if values.choices:
        return trial.suggest_categorical(name, values.choices)
    if isinstance(values.default, int):
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def _values_of(option: ModelOption) -> Values | None:
    """The values that are tried for an option; None: only its default."""
    name, default = option.name, option.default
    if typing.get_origin(option.type) is Literal:
        texts = tuple(map(str, typing.get_args(option.type)))
        return Values(str(default), choices=texts)
    if option.type is bool and isinstance(default, bool):
        return Values(format_value(default), choices=("false", "true"))
    if name == "hidden" and isinstance(default, (list, tuple)):
        text = format_value(default)
        return Values(text, choices=(*(w for w in _WIDTHS if w != text), text))
    if name in _SIZES or option.type not in (int, float) or isinstance(default, bool):
        return None
    if name.endswith("dropout"):
        return Values(float(default), 0.0, max(0.8, float(default)))
    if name == "l2" or name.endswith("_l2"):
        return Values(max(float(default), 1e-6), 1e-6, max(1.0, float(default)), log=True)
    if not isinstance(default, (int, float)) or default <= 0:
        return None
    return _around(option.type(default), 4 if option.type is int else 10)


def _around(default: float, factor: int) -> Values:
    if isinstance(default, int):
        return Values(default, max(1, default // factor), default * factor, log=True)
    return Values(default, default / factor, default * factor, log=True)
