"""The values that `twml-ops tune` tries: of the learning rate and of the options of a model.

The range of an option follows from its name, its type and its default, so that it exists for models
of the user as well.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal

from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.model_options import ModelOption, builder_of, options_of
from twml_ops.cli.runs.typed_values import format_value, parse_value

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
