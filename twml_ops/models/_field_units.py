"""The width of the vector of each field, where they differ."""

from __future__ import annotations

from collections.abc import Sequence

AUTO = "auto"


def field_widths(
    field_units: Sequence[str] | None, fields: Sequence[tuple[str, int]], units: int
) -> list[int]:
    """The width of each field.

    Args:
        field_units: None: `units` for all. ["auto"]: the fourth root of the number of rows of the
            field, rounded, at least 1 and at most `units`; the rule of thumb of "Introducing
            TensorFlow Feature Columns" (Google Developers Blog, 2017), which Wang et al., "Deep &
            Cross Network for Ad Click Predictions", ADKDD 2017, use with a factor of 6.
            Otherwise "NAME:WIDTH" of some fields; the others have the width `units`.
        fields: name and number of rows of each.
        units: width of the other fields.

    Raises:
        ValueError: an item has another form, a width is not positive, or there is no such field.
    """
    if field_units is None:
        return [units] * len(fields)
    if list(field_units) == [AUTO]:
        return [max(1, min(units, round(rows**0.25))) for _, rows in fields]
    widths = {name: units for name, _ in fields}
    for item in field_units:
        name, colon, width = item.rpartition(":")
        if not colon or not width.isdecimal() or int(width) < 1:
            raise ValueError(
                f"field_units must be auto, or NAME:WIDTH with a positive width, got {item!r}"
            )
        if name not in widths:
            raise ValueError(
                f"field_units must name fields, got {name!r}; the fields are {', '.join(widths)}"
            )
        widths[name] = int(width)
    return list(widths.values())
