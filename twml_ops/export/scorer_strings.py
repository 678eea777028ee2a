"""Conversion of `StringHash` layers to steps of a scorer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._category_hash import column_key
from twml_ops._keras import LayerCall
from twml_ops.export.model_inputs import row_splits_name
from twml_ops.export.scorer_program import Dense, Input, Part, Program


def hash_strings(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    """Appends the steps of a `StringHash`.

    A mapping has a step for each column, whose ids are joined. One tensor has one step, and a
    ragged tensor a step that leaves empty strings out.

    Args:
        program: The program.
        layer: The layer.
        call: Its call.

    Returns:
        The ids: a `Dense`, or the `Part` of a ragged batch.

    Raises:
        ValueError: An input is a sparse tensor, or of a type that has no decimal text.
    """
    keys = [[int(half) for half in column_key(column)] for column in layer.columns]
    if not call.named:
        (made,) = program.made(call.inputs)
        if isinstance(made, Part) or (isinstance(made, Input) and made.ragged):
            return [_bag(program, layer, made, keys)]
        return [Dense(_matrix(program, layer, made, keys))]
    columns = program.made([call.named[column] for column in layer.columns])
    ids: list[str | None] = [
        _matrix(program, layer, made, [key]) for made, key in zip(columns, keys, strict=True)
    ]
    if len(ids) == 1:
        return [Dense(str(ids[0]))]
    out = program.new()
    program.step("concatenate", ids, [out], axis=-1)
    return [Dense(out)]


def _matrix(program: Program, layer: Any, made: Any, keys: list[list[int]]) -> str:
    """The register of the ids of a dense tensor."""
    kind = _kind(layer, made)
    if kind == "strings":
        register = program.feed(made.name, "strings")
    elif isinstance(made, Input):
        register = program.feed(made.name, "dense")
    else:
        register = made.register
    out = program.new()
    program.step("hash_strings", [register], [out], kind=kind, keys=keys)
    return out


def _bag(program: Program, layer: Any, made: Any, keys: list[list[int]]) -> Part:
    """The ids of a ragged tensor, and its new row splits."""
    kind = _kind(layer, made)
    if kind == "bools":
        raise ValueError(f"layer {layer.name!r} is called with ragged bools; the scorer takes none")
    if isinstance(made, Input):
        splits = program.feed(row_splits_name(made.name), "row_splits")
        register = program.feed(made.name, "bag" if kind == "strings" else "ids")
    else:
        register, splits = made
    out = program.new()
    ids = Part(f"{out}i", f"{out}s")
    outputs: list[str | None] = [ids.register, None, ids.row_splits]
    program.step("hash_bag", [register, None, splits], outputs, kind=kind, keys=keys)
    return ids


def _kind(layer: Any, made: Any) -> str:
    """What the categories are: "strings", "integers" or "bools"."""
    if not isinstance(made, Input):
        if isinstance(made, (Dense, Part)):
            return "integers"  # the layer takes no floats
    else:
        dtype = tf.as_dtype(made.spec.dtype)
        if dtype == tf.string and not made.sparse:
            return "strings"
        if dtype.is_bool and not made.sparse:
            return "bools"
        if dtype.is_integer and dtype != tf.uint64 and not made.sparse:
            return "integers"
    got = getattr(getattr(made, "spec", None), "dtype", "a sparse batch")
    raise ValueError(
        f"layer {layer.name!r} must be called with dense or ragged strings, integers below 2^63 or "
        f"bools, got {got}"
    )
