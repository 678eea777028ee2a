"""`twml-ops schema`: shows the features of a data set, or writes them to edit."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from twml_ops.cli.commands.options import (
    SOURCES,
    Categorical,
    Debug,
    Drop,
    Group,
    Label,
    Numeric,
    Time,
    Weight,
)


class Format(str, Enum):
    """Formats in which a schema can be written."""

    YAML = "yaml"
    JSON = "json"
    TABLE = "table"


def schema(
    data: Annotated[str, typer.Argument(help=f"Examples: {SOURCES}.", show_default=False)],
    format: Annotated[Format, typer.Option(help="Format of the output.")] = Format.YAML,
    label: Label = None,
    time: Time = None,
    weight: Weight = None,
    group: Group = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    drop: Drop = None,
    debug: Debug = False,
) -> None:
    """Writes what the columns of a data set are: their kinds, and why.

    `twml-ops schema DATA > features.yaml` writes a file to edit: the kind of each column, or why it
    is not used, and the sample weights, labels, time and group. `train --schema features.yaml`
    reads with it.
    """
    from twml_ops.cli.runs.configure import uses_of
    from twml_ops.cli.runs.schema import show_schema

    uses = uses_of(label, time, weight, group, categorical, numeric, drop)
    show_schema(data, format.value, uses)
