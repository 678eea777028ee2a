"""The layout of a scorer: everything but trained values. It decides if changed rows are enough."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from twml_ops.export.array_files import bytes_of

PARTS = ("schema", "steps", "boundaries", "vocabulary", "calibration")
"""The parts of a model of which a layout has digests."""

# Steps whose arrays are weights, statistics of values, or sums: training changes them at any time,
# and they do not say what a row of a table means. A dynamic lookup does say it, but training
# changes the row of the table when its id changes, so that both are among the changed rows.
_TRAINED = {
    "affine",
    "checked_field_embedding",
    "dense",
    "dynamic_lookup",
    "field_embedding",
    "max_norm",
    "online_standardize",
    "sparse_linear",
}
_PART_OF_STEP = {
    "boosted_trees": "boundaries",
    "category_rows": "vocabulary",
    "category_statistics": "vocabulary",
    "field_logarithms": "boundaries",
    "field_quantiles": "boundaries",
    "hashing_discretize": "boundaries",
    "isotonic_calibration": "calibration",
    "learned_hash": "vocabulary",
    "percentile_discretize": "boundaries",
    "platt_scaling": "calibration",
}


def layout_digests(
    program: Mapping[str, Any], arrays: Mapping[str, tuple[str, tuple[int, ...]]], files: Any
) -> dict[str, str]:
    """Digests of everything but trained weights and statistics.

    Two exports with equal digests differ in weights only, so one may be served as the changed
    rows of the other.

    Args:
        program: the program, with `steps` whose arrays are names of files.
        arrays: type and shape of each array, by the name of its file.
        files: the arrays themselves, by the names of their files.

    Returns:
        A digest of the schema (the inputs and the raw columns), the steps (with their attributes
        and the row map: the shapes of all arrays), the boundaries, the vocabulary and the
        calibration.
    """
    made = {part: hashlib.blake2b(digest_size=16) for part in PARTS}
    schema = {key: program.get(key) for key in ("inputs", "shapes", "raw", "output")}
    if "outputs" in program:
        schema["outputs"] = program["outputs"]
    made["schema"].update(_text(schema))
    for i, step in enumerate(program["steps"]):
        shapes = {key: arrays[file] for key, file in step["arrays"].items()}
        made["steps"].update(_text({**step, "arrays": shapes}))
        if step["op"] in _TRAINED:
            continue
        part = made[_PART_OF_STEP.get(step["op"], "steps")]
        for key, file in sorted(step["arrays"].items()):
            part.update(f"{i} {step['op']} {key} {arrays[file]}".encode())
            part.update(bytes_of(files[file]))
    return {name: digest.hexdigest() for name, digest in made.items()}


def difference(mine: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """The parts in which two layouts differ, as a text; None if there are none."""
    parts = [part for part in mine if other.get(part) != mine[part]]
    return " and ".join(parts) or None


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
