"""The configuration of a training run: a file, overridden by the options of the command."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twml_ops.cli.console import make_error_console
from twml_ops.cli.options import ColumnOptions
from twml_ops.data import ColumnUses
from twml_ops.training.config import AUTO, COLUMN_OPTIONS, DEFAULT, ClusterOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.run_folder import RUN_FILE


def configure(file: Path | None, given: Mapping[str, Any], options: Sequence[str]) -> RunConfig:
    """The configuration that the command line describes.

    An option that is given replaces the field of the file. `--model` also drops the file's model
    options if they belong to another model, `--epochs` drops its choice of validation data, and
    `--validation` its epochs. With `--from`, the earlier run is the file, except for its data.

    Args:
        file: folder or run.json of a run, or a JSON file with fields of `RunConfig`; None: no file.
        given: options of the command line that the user gave, by name of the field; others are
            ignored.
        options: options of the model, NAME=VALUE each.

    Raises:
        UserError: the file cannot be read, has a field that is unknown or of the wrong type, or an
            option of the model is wrong.
    """
    given = {name.rstrip("_"): value for name, value in given.items()}
    for name in ("label", "time_features", "categorical", "numeric", "drop"):
        if name in given:
            given[name] = split_names(given[name])
    fields: dict[str, Any] = {}
    start = given.get("from_run")
    if start is not None:
        _check_warm_start(given, options, file)
        file = Path(start)
    if file is not None:
        # A file may lack the data, but its other fields are checked, with the name of the file in
        # errors.
        values = _read(file)
        fields = RunConfig.from_json({"data": "", **values}).to_json()
        _warn_of_versions(values.get("versions"))
    if start is not None:  # the earlier run had other data
        other = ("data", "eval", "schema_file", "storage", *COLUMN_OPTIONS)
        fields = {k: v for k, v in fields.items() if k not in other}
    if given.get("model", fields.get("model")) != fields.get("model"):
        fields.pop("model_options", None)
    if "epochs" in given:
        fields.pop("validation", None)
    if "validation" in given:
        fields.pop("epochs", None)
    of_columns = [name for name in COLUMN_OPTIONS if name in given]
    if "schema_file" in given:
        if of_columns:
            raise UserError(
                f"--schema: the file determines the columns, got {option_of(of_columns[0])} as well"
            )
        fields = {k: v for k, v in fields.items() if k not in COLUMN_OPTIONS}
    elif of_columns:
        fields.pop("schema_file", None)
    names = {f.name for f in dataclasses.fields(RunConfig)}
    fields |= {name: value for name, value in given.items() if name in names}
    of_cluster = {f.name for f in dataclasses.fields(ClusterOptions)}
    fields["cluster"] = (fields.get("cluster") or {}) | {
        name: value for name, value in given.items() if name in of_cluster
    }
    if not fields.get("data"):
        raise UserError("--data is missing")
    config = RunConfig.from_json(fields)
    if config.model in (AUTO, DEFAULT):
        if options or config.model_options:
            why = "name the model whose options are to be set, with --model"
            if config.model == AUTO:
                why = "--model auto chooses the options; name a model to set them"
            raise UserError(f"--set: {why}")
        return config
    from twml_ops.training.model_options import builder_of, check_options, parse_options

    build = builder_of(config.model)
    parsed = parse_options(config.model, build, options)
    config = dataclasses.replace(config, model_options={**config.model_options, **parsed})
    check_options(config.model, build, config.model_options)
    return config


def option_of(name: str) -> str:
    """The option of the command line for a field of `RunConfig`."""
    return f"--{name.replace('_', '-')}"


def split_names(names: Sequence[str] | None) -> list[str]:
    """The names in texts, each of which may hold several, separated by commas."""
    return [name for text in names or () for name in text.split(",") if name]


def uses_of(given: ColumnOptions) -> ColumnUses:
    """The fields of `ColumnUses` that the options of a command give."""
    return ColumnUses(
        labels=tuple(split_names(given.label)),
        positive_label=given.positive_label,
        time=given.time,
        weight=given.weight,
        group=given.group,
        categorical=tuple(split_names(given.categorical)),
        numeric=tuple(split_names(given.numeric)),
        drop=tuple(split_names(given.drop)),
        time_features=tuple(split_names(given.time_features)),
    )


def _check_warm_start(given: Mapping[str, Any], options: Sequence[str], file: Path | None) -> None:
    """Checks that nothing is given beside `--from` that the earlier run decides."""
    names = {"model": "--model", "schema_file": "--schema"}
    names |= {name: option_of(name) for name in COLUMN_OPTIONS}
    wrong = [option for name, option in names.items() if name in given]
    wrong += ["--set"] * bool(options) + ["--config"] * (file is not None)
    if wrong:
        raise UserError(f"--from: the run determines the model, got {wrong[0]} as well")


def _warn_of_versions(made_by: Any) -> None:
    """Warns if a run was made by other versions, with which its weights would not be the same."""
    if not isinstance(made_by, Mapping):
        return
    from twml_ops.training.run import versions

    for name, version in versions().items():
        if made_by.get(name, version) != version:
            make_error_console().print(
                f"[yellow]warning[/]  the run was made by {name} {made_by[name]}, this is "
                f"{version}: the weights may differ",
                soft_wrap=True,
            )


def _read(file: Path) -> dict[str, Any]:
    path = file / RUN_FILE if file.is_dir() else file
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"--config {path}: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"--config {path}: is not JSON: {e}") from e
    if not isinstance(values, dict):
        raise UserError(f"--config {path}: expected an object, got {type(values).__name__}")
    return values
