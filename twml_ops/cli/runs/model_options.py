"""The model of a run: a packaged one or a function of the user, and its options.

The options are the keyword-only parameters of the function that builds the model. The annotations
are their types.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from twml_ops import models
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.typed_values import format_value, has_type, parse_value, type_name
from twml_ops.data.tune_pipeline import load_attribute
from twml_ops.models import ModelBuilder


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
