"""Schemas as YAML or JSON files: what `twml-ops schema` writes and `open_source` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from twml_ops._category_hash import VERSION
from twml_ops.data.errors import DataError, one_line, shown
from twml_ops.data.infer import Finding
from twml_ops.data.schema import SPARSE_IDS, TIME_PARTS, TIME_UNITS, Kind, Schema

_NAMES = ("positive_label", "weight", "time", "group")  # of one text each
_KEYS = ("features", "labels", "positive", *_NAMES, "day_first", "hash_version")
_FEATURE_KEYS = (
    *("name", "kind", "weights", "separator", "dim", "features", "unit", "drop", "reason"),
)
_TIME = "time"  # the kind of a column of which parts are features
_DROPPED = "dropped"  # the kind of a column that is named, but not used


def schema_to_dict(schema: Schema, findings: Mapping[str, Finding] | None = None) -> dict[str, Any]:
    """The content of a schema file; `findings`: what the columns of the data are."""
    features: list[dict[str, Any]] = []
    for feature in schema.features:
        if schema.time_feature(feature.name):
            continue
        entry: dict[str, Any] = {"name": feature.name, "kind": feature.kind}
        if feature.kind == "bag" and feature.weights is not None:
            entry["weights"] = feature.weights
        if feature.name in schema.separators:
            entry["separator"] = schema.separators[feature.name]
        if feature.dim is not None:
            entry["dim"] = feature.dim
        features.append(entry)
    made = [m for name in schema.fields if (m := schema.time_feature(name))]
    for name, unit in schema.times.items():
        entry = {"name": name, "kind": _TIME, "features": [p for c, p in made if c == name]}
        features.append(entry | ({"unit": unit} if unit else {}))
    for name, finding in (findings or {}).items():
        if name in schema.times:
            continue
        if finding.kind == _TIME or finding.is_time:  # to be filled in
            entry = {"name": name, "kind": _TIME, "features": []}
            features.append(entry | ({"unit": finding.unit} if finding.unit else {}))
        elif finding.kind == "dropped":
            features.append({"name": name, "drop": finding.why})
    return {
        "features": features,
        "labels": list(schema.labels),
        "positive": schema.label,
        **{name: value for name in _NAMES if (value := getattr(schema, name)) is not None},
        **({"day_first": True} if schema.day_first else {}),
        "hash_version": schema.hash_version,
    }


def schema_from_dict(content: Any, where: str) -> Schema:
    """The schema that a file's content says.

    Args:
        content: as `schema_to_dict` makes it. Only `features` is required.
        where: the file, for messages.

    Raises:
        DataError: an unknown key or kind, a missing one, or a value of the wrong type.
    """
    content = _mapping(content, _KEYS, where)
    features = content.get("features")
    if not isinstance(features, list) or not features:
        raise DataError(f"{where}: `features` must be a list of at least one feature")
    names: dict[str, list[str]] = {kind: [] for kind in get_args(Kind)}
    categorical: list[str] = []
    weights: dict[str, str] = {}
    separators: dict[str, str] = {}
    times: dict[str, str] = {}
    dim = 0
    for i, entry in enumerate(features):
        at = f"{where}: features[{i}]"
        entry = _mapping(entry, _FEATURE_KEYS, at)
        name = _text(entry, "name", at)
        if "drop" in entry:
            continue
        kind = _text(entry, "kind", at)
        if kind == _DROPPED:
            continue
        if kind == _TIME:
            if parts := _parts(entry, name, at):
                categorical += (f"{name}.{part}" for part in parts)
                times[name] = _text(entry, "unit", at) if "unit" in entry else ""
            continue
        if kind not in names:
            raise DataError(
                f"{at}: kind must be one of {', '.join(names)}, {_TIME}, {_DROPPED}, got "
                f"{shown(kind)}"
            )
        for key in ("features", "unit"):
            if key in entry:
                raise DataError(f"{at}: only a time has `{key}`, {name} is {kind}")
        names[kind].append(name)
        if kind in ("categorical", "bag"):
            categorical.append(name)
        if "weights" in entry:
            if kind != "bag":
                raise DataError(f"{at}: only a bag has `weights`, {name} is {kind}")
            weights[name] = _text(entry, "weights", at)
        if "separator" in entry:
            if kind != "bag":
                raise DataError(f"{at}: only a bag has a `separator`, {name} is {kind}")
            separators[name] = _text(entry, "separator", at)
            if not separators[name]:
                raise DataError(f"{at}: the `separator` of {name} must not be empty")
        if kind == "sparse":
            dim = entry.get("dim", 0)
            if name != SPARSE_IDS or not isinstance(dim, int) or dim < 1:
                raise DataError(
                    f"{at}: a sparse feature must be called {SPARSE_IDS} and have a `dim` of at "
                    f"least 1, got {name} and {shown(dim)}"
                )
        elif "dim" in entry:
            raise DataError(f"{at}: only a sparse feature has a `dim`, {name} is {kind}")
    labels = content.get("labels", ["label"])
    labels = [labels] if isinstance(labels, str) else labels
    if not isinstance(labels, list) or not all(isinstance(n, str) for n in labels):
        raise DataError(f"{where}: `labels` must be a list of names, got {shown(labels)}")
    if not labels:
        raise DataError(f"{where}: `labels` must name at least one column, got none")
    one_name: dict[str, Any] = {
        name: _text(content, name, where) for name in _NAMES if name in content
    }
    day_first = content.get("day_first", False)
    if not isinstance(day_first, bool):
        raise DataError(f"{where}: `day_first` must be true or false, got {shown(day_first)}")
    version = content.get("hash_version", VERSION)
    positive = content.get("positive", f"the label is {one_name.get('positive_label', 1)}")
    if isinstance(positive, list | dict):
        raise DataError(f"{where}: `positive` must be text, got {shown(positive)}")
    try:
        return Schema(
            tuple(names["continuous"]),
            tuple(categorical),
            dim,
            str(positive),
            tuple(names["bag"]),
            weights,
            tuple(labels),
            hash_version=version,
            separators=separators,
            times=times,
            day_first=day_first,
            **one_name,
        )
    except ValueError as e:
        raise DataError(f"{where}: {e}") from None


def _parts(entry: Mapping[str, Any], name: str, at: str) -> list[str]:
    """The parts of a column of times that are features."""
    parts = entry.get("features", [])
    if not isinstance(parts, list) or not all(part in TIME_PARTS for part in parts):
        raise DataError(
            f"{at}: the `features` of {name} must be a list of {', '.join(TIME_PARTS)}, got "
            f"{shown(parts)}"
        )
    unit = entry.get("unit", TIME_UNITS[0])
    if unit not in TIME_UNITS:
        raise DataError(
            f"{at}: the `unit` of {name} must be one of {', '.join(TIME_UNITS)}, got {shown(unit)}"
        )
    return parts


def read_schema(path: str | Path) -> Schema:
    """Reads a schema file.

    Args:
        path: the path of the file: JSON if its name ends in .json, otherwise YAML.

    Returns:
        The schema.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: it is not such a file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else _yaml().safe_load(text)
    except Exception as e:  # YAML has errors of its own, and so has JSON
        if isinstance(e, ImportError):
            raise
        raise DataError(f"{path}: cannot be read: {one_line(e)}") from None
    return schema_from_dict(content, str(path))


def schema_to_text(
    schema: Schema, format: str, findings: Mapping[str, Finding] | None = None
) -> str:
    """Writes a schema as the content of a schema file.

    Args:
        schema: to write.
        format: "yaml" or "json".
        findings: column → what it is and why, see `Source.findings`. Those that are not used are
            written with the reason, `drop`, and in YAML all of them with a comment.

    Returns:
        The text.

    Raises:
        ValueError: there is no such format.
    """
    content = schema_to_dict(schema, findings)
    if format == "json":
        return json.dumps(content, indent=1) + "\n"
    if format != "yaml":
        raise ValueError(f'format must be "yaml" or "json", got {format!r}')
    features = content.pop("features")
    yaml = _yaml()
    listed = ""
    for feature in features:
        line = yaml.safe_dump(feature, default_flow_style=True, width=10**6, allow_unicode=True)
        finding = (findings or {}).get(feature["name"])
        listed += f"  - {line.strip()}{_comment(finding) if finding else ''}\n"
    return f"features:\n{listed}" + str(yaml.safe_dump(content, sort_keys=False))


def _comment(finding: Finding) -> str:
    """What is known of a column, behind its line."""
    parts = [finding.why] if finding.kind != "dropped" or finding.is_time else []
    parts += [f"{finding.distinct:,} distinct"] if finding.distinct else []
    parts += [f"{finding.missing:.1%} missing"] if finding.missing else []
    text = "; ".join(parts).replace("\n", " ").replace("\r", " ")
    mark = "" if finding.sure else "uncertain: "
    return f"  # {mark}{text}" if text else ""


def _yaml() -> Any:
    import yaml

    return yaml


def _mapping(content: Any, known: tuple[str, ...], where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise DataError(
            f"{where}: expected a mapping with {', '.join(known)}, got {shown(content)}"
        )
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise DataError(f"{where}: unknown {', '.join(unknown)}, expected {', '.join(known)}")
    return content


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    value = content.get(key)
    if not isinstance(value, str):
        raise DataError(f"{where}: `{key}` must be text, got {shown(value)}")
    return value
