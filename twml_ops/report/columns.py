"""The columns and the features of a data set as tables."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.markup import escape
from rich.table import Table

from twml_ops.data import Finding, Schema
from twml_ops.data.column_uses import BY_OPTION


def schema_table(schema: Schema) -> Table:
    """A table with one row per column of the data."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("column", style="bold")
    table.add_column("kind")
    table.add_column("", style="dim")
    for feature in schema.features:
        notes = [f"weights in {feature.weights}"] if feature.weights else []
        notes += [f"ids below {feature.dim:,}"] if feature.dim else []
        if made := schema.time_feature(feature.name):
            notes += [f"{made[1]} of {made[0]}"]
        table.add_row(escape(feature.name), feature.kind, escape(", ".join(notes)))
    for name in schema.labels:
        table.add_row(escape(name), "label", escape(f"positive: {schema.label}"))
    for use in ("weight", "time", "group"):
        if name := getattr(schema, use):
            table.add_row(escape(name), use, "")
    for name in schema.times:
        if name != schema.time:
            table.add_row(escape(name), "time", "")
    return table


_LIMIT = (
    60  # rows of the table; in longer ones features that are certain by their type are left out
)

_OTHERWISE = {
    "continuous": "--categorical",
    "categorical": "--numeric",
    "bag": "--categorical",
    "time": "--drop",
    "dropped": "--categorical",
}
_OFFERED = ("hour", "weekday")  # features of a column of times, of which there are none


def _is_plain(finding: Finding) -> bool:
    """Whether a column is a feature by its type, or left out because the user said it."""
    feature = finding.kind in ("continuous", "categorical", "bag", "sparse")
    return finding.sure and finding.by_type and (feature or finding.why == BY_OPTION)


def columns_table(findings: Mapping[str, Finding], schema: Schema) -> Table:
    """A table with a row for each column of the data: what it is, why, and how to change it.

    Args:
        findings: column → what it is.
        schema: what follows from them.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("column", style="bold", overflow="fold")
    table.add_column("kind", no_wrap=True)
    table.add_column("distinct", justify="right")
    table.add_column("missing", justify="right")
    table.add_column("why")
    table.add_column("otherwise", style="dim", overflow="fold")
    left_out = 0
    for name, finding in findings.items():
        if len(findings) > _LIMIT and _is_plain(finding):
            left_out += 1
            continue
        kind = finding.kind + (", group" if name == schema.group else "")
        style = "yellow" if not finding.sure else "dim" if finding.kind == "dropped" else ""
        other = "" if finding.by_type else f"{_OTHERWISE.get(finding.kind, '')} {name}"
        why = finding.why
        if name in schema.times:
            made = (schema.time_feature(n) for n in schema.categorical)
            why += f"; features: {', '.join(part for c, part in filter(None, made) if c == name)}"
        elif finding.kind == "time" or finding.is_time:
            features = ",".join(f"{'' if name == schema.time else f'{name}.'}{p}" for p in _OFFERED)
            other += f"{', ' if other else ''}--time-features {features}"
        table.add_row(
            escape(name or '""'),
            f"[{style}]{kind}{'' if finding.sure else ' ?'}[/]" if style else kind,
            f"{finding.distinct:,}" if finding.distinct else "",
            f"{finding.missing:.1%}" if finding.missing else "",
            escape(why),
            escape(other),
        )
    if left_out:
        table.add_row("…", "", "", "", f"and {left_out:,} more, by their types or options", "")
    return table
