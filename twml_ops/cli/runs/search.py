"""`twml-ops search`: searches for the architecture of a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.markup import escape

from twml_ops import models
from twml_ops import search as architectures
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import search_table
from twml_ops.cli.render.schema_table import print_columns
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.runs.choose_epochs import validation_parts
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.folder import new_file, write_json, write_result
from twml_ops.cli.runs.sources import open_pair
from twml_ops.cli.runs.typed_values import parse_value
from twml_ops.data import original_errors


class Choices(NamedTuple):
    """The texts of the command line.

    Attributes:
        field_units: widths of vectors.
        max_rows: numbers of rows.
        interactions: names of modules.
        hidden: widths of each dense layer.
        cost: NAME=FACTOR each.
    """

    field_units: str
    max_rows: str
    interactions: str
    hidden: Sequence[str]
    cost: Sequence[str]


def search(
    config: RunConfig, choices: Choices, passes: tuple[int, int], out: Path, overwrite: bool
) -> RunConfig:
    """Searches, prints the passes, and writes the configuration of what was found.

    Args:
        config: configuration with the data and the options of dhen that are not searched.
        choices: what is searched.
        passes: over the data: of the warm-up, and of the search.
        out: JSON file to write, for `twml-ops train --config`.
        overwrite: replace an existing file.

    Returns:
        The configuration.

    Raises:
        UserError: an option is wrong, `out` cannot be written, or there are no validation data.
        DataError: data cannot be read.
    """
    if config.validation == "none":
        raise UserError("search needs validation data, so it cannot go with --validation none")
    config = dataclasses.replace(config, cluster=None)
    assert config.learning_rate is not None
    try:
        space = _space(config, choices)
        settings = architectures.Settings(
            costs=_costs(choices.cost),
            warm_up=passes[0],
            epochs=passes[1],
            learning_rate=config.learning_rate,
            seed=config.seed,
        )
    except ValueError as e:
        raise UserError(str(e)) from e
    with new_file(out, overwrite) as file:
        found = _search(config, space, settings)
        config = dataclasses.replace(config, model_options=found[0])
        write_result(file, out, lambda path: write_json(path, config.to_json()))
    search_table.print_found(make_console(), found[1], out)
    return config


def _search(
    config: RunConfig, space: architectures.SearchSpace, settings: architectures.Settings
) -> tuple[dict[str, Any], architectures.SearchResult]:
    """The options of the model that was found, and the result of the search."""
    console = make_console()
    data, _ = open_pair(config.data, config.eval, schema_file=config.schema_file, uses=config.uses)
    print_columns(console, data)
    with original_errors(data), console.status(f"reading {escape(data.name)}"):
        parts = validation_parts(config, data)
    if parts is None:
        raise UserError("there are no validation data to search with: use another --validation")
    layout = models.layout_of(models.dhen)
    batches, held_out = (
        part.dataset(config.batch_size, shuffle=True, seed=config.seed, layout=layout)
        for part in parts
    )
    search_table.print_header(console, data.name, parts.validation.name)
    with original_errors(data, *parts):
        try:
            found = architectures.search(
                space,
                data.schema,
                batches,
                held_out,
                settings,
                lambda epoch: search_table.print_epoch(console, epoch),
            )
        except ValueError as e:
            raise UserError(str(e)) from e
    return space.options(data.schema, found.architecture), found


def _space(config: RunConfig, choices: Choices) -> architectures.SearchSpace:
    fixed = dict(config.model_options)
    dropout = {"dropout": fixed.pop("dropout")} if "dropout" in fixed else {}
    return architectures.SearchSpace(
        field_units=_integers("--field-units", choices.field_units),
        max_rows=_integers("--max-rows", choices.max_rows),
        interactions=parse_value(choices.interactions, Sequence[str]),
        dense=[
            architectures.DenseWidth(f"hidden_{i}", _integers("--hidden", text), **dropout)
            for i, text in enumerate(choices.hidden)
        ],
        **fixed,
    )


def _integers(option: str, text: str) -> list[int]:
    try:
        found: list[int] = parse_value(text, Sequence[int])
    except ValueError as e:
        raise UserError(f"{option}: {e}") from e
    return found


def _costs(texts: Sequence[str]) -> dict[str, float]:
    costs = {}
    for text in texts:
        name, equals, factor = text.partition("=")
        try:
            costs[name] = float(factor if equals else "")
        except ValueError:
            raise UserError(f"--cost {text}: expected NAME=FACTOR") from None
    return costs
