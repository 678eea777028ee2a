"""Small programs of scorers, one for each operation, and random requests for them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from twml_ops import _core

BITS = {"int8": 8, "int4": 4}
FORMS = ("float32", "bfloat16", "scaled_int8", "int8", "int4")
WIDTHS = (1, 3, 4, 5, 16, 17, 33)  # around the widths of vectors and of panels


@dataclass
class Example:
    """A program, its arrays, and what a request for it consists of.

    Attributes:
        inputs: name -> role.
        steps: (op, inputs, outputs, arrays, attributes), in order.
        dense: name -> (shape of a row, "float", "integer", "bool" or "string").
        groups: name of row splits -> (name of ids or None, name of values or None, number of ids);
            0 ids: the entries are strings.
        outputs: name -> shape of a row, if there are several.
    """

    inputs: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    dense: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    groups: dict[str, tuple[str | None, str | None, int]] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)

    def number(self, name: str, *shape: int, kind: str = "float") -> str:
        """Adds a dense input."""
        self.inputs[name] = "strings" if kind == "string" else "dense"
        self.dense[name] = shape, kind
        return name

    def batch(self, name: str, num_ids: int, values: bool = True) -> list[str | None]:
        """Adds a sparse input; returns the names of its parts."""
        ids, splits = f"{name}_ids", f"{name}_row_splits"
        self.inputs |= {ids: "ids" if num_ids else "bag", splits: "row_splits"}
        weights = f"{name}_values" if values else None
        if weights:
            self.inputs[weights] = "values"
        self.groups[splits] = ids, weights, num_ids
        return [ids, weights, splits]

    def step(self, op, inputs, outputs, arrays=None, **attributes) -> list[str]:
        """Appends a step."""
        self.steps.append((op, list(inputs), list(outputs), arrays or {}, attributes))
        return outputs

    def write(self, folder: Path, shapes: bool = True) -> Path:
        """Writes the folder that `export.to_scorer` would write."""
        folder.mkdir(parents=True, exist_ok=True)
        steps = []
        for i, (op, inputs, outputs, arrays, attributes) in enumerate(self.steps):
            names = {key: f"{i:03}_{op}_{key}.npy" for key, a in arrays.items() if a is not None}
            for key, file in names.items():
                np.save(folder / file, arrays[key])
            steps.append(
                {"op": op, "in": inputs, "out": outputs, "arrays": names, "attributes": attributes}
            )
        program = {
            "format": 1,
            "inputs": self.inputs,
            "steps": steps,
            "output": self.steps[-1][2][0],
        }
        if shapes:
            program["shapes"] = {name: list(shape) for name, (shape, _) in self.dense.items()}
        if self.outputs:
            program["format"] = 3
            program["outputs"] = [{"name": n, "shape": s} for n, s in self.outputs.items()]
        (folder / "scorer.json").write_text(json.dumps(program))
        return folder

    def request(self, rows: int, seed: int = 0, longest: int = 9) -> dict[str, np.ndarray]:
        """Random arrays; some rows of sparse inputs have no entries."""
        rng = np.random.default_rng(seed)
        made: dict[str, np.ndarray] = {}
        for name, (shape, kind) in self.dense.items():
            size = (rows, *shape)
            if kind == "float":
                made[name] = (rng.normal(size=size) * 2).astype(np.float32)
            elif kind == "integer":
                made[name] = rng.integers(-1, 12, size)
            elif kind == "string":
                made[name] = _CATEGORIES[rng.integers(0, len(_CATEGORIES), size)]
            else:
                made[name] = rng.random(size) < 0.8
        for splits, (ids, values, num_ids) in self.groups.items():
            lengths = rng.integers(0, longest, rows)
            made[splits] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            total = int(lengths.sum())
            if ids and num_ids:
                made[ids] = rng.integers(0, num_ids, total)
            elif ids:
                made[ids] = _CATEGORIES[rng.integers(0, len(_CATEGORIES), total)]
            if values:
                made[values] = rng.normal(size=total).astype(np.float32)
        return made


def side_by_side(prediction: Any) -> np.ndarray:
    """The array of a prediction; of several outputs, all of them side by side."""
    if not isinstance(prediction, dict):
        return prediction
    flat = [x.reshape(len(x), np.prod(x.shape[1:], dtype=int)) for x in prediction.values()]
    return np.concatenate(flat, axis=1)


_CATEGORIES = np.array([b"", b"a", "Zürich".encode(), b"x" * 40, b"\0", b"12"], object)


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def row_format(form: str, width: int) -> dict[str, Any]:
    """The attributes of a step with such a table."""
    return {"row_format": form, "units": width} if form in BITS else {}


def tables(rows: int, width: int, form: str, seed: int = 0) -> dict[str, np.ndarray]:
    """A table in the format float32, bfloat16, scaled_int8, int8 or int4."""
    table = _normal(rows, width, seed=seed)
    if form == "float32":
        return {"table": table}
    if form == "bfloat16":
        return {"table": (table.view(np.uint32) >> 16).astype(np.uint16)}
    if form in BITS:
        return {"table": _core.quantize_scorer_rows(table, bits=BITS[form])}
    scale = (np.abs(table).max(axis=1) / 127).astype(np.float32)
    return {"table": np.rint(table / scale[:, None]).astype(np.int8), "scale": scale}


def _sparse_linear(form: str, width: int, values: bool, bias: bool = True) -> Example:
    e = Example()
    arrays = tables(50, width, form) | ({"bias": _normal(width, seed=1)} if bias else {})
    e.step("sparse_linear", e.batch("x", 50, values), ["#0"], arrays, **row_format(form, width))
    return e


def _dense(rows: int, columns: int, bias: bool, *leading: int) -> Example:
    e = Example()
    arrays = {"kernel": _normal(rows, columns)} | ({"bias": _normal(columns)} if bias else {})
    e.step("dense", [e.number("x", *leading, rows)], ["#0"], arrays)
    return e


def _activation(name: str, fused: bool) -> Example:
    e = Example()
    x = e.number("x", 21)
    if fused:
        x = e.step("dense", [x], ["#d"], {"kernel": _normal(21, 19)})[0]
    e.step("activation", [x], ["#0"], name=name)
    return e


def _buckets(op: str, **options: Any) -> Example:
    e = Example()
    features = np.arange(0, 40, 2)
    splits = np.concatenate([[0], np.cumsum(np.arange(20) * 3)])
    boundaries = np.concatenate([np.sort(_normal(i * 3, seed=i)) for i in range(20)])
    arrays = {"feature_ids": features, "boundaries": boundaries, "boundary_splits": splits}
    defaults = {"side": "left", "missing": "bucket", "unknown": "pass", "keep_inputs": False}
    options = defaults | options
    bits = "output_bits" if op == "hashing_discretize" else "pass_through_bits"
    made = e.step(op, e.batch("x", 40), ["#i", "#v", "#s"], arrays, **options, **{bits: 6})
    e.step("sparse_linear", made, ["#0"], tables(1000, 5, "float32"))
    return e


def _embedding(
    form: str,
    pooling: str | None,
    combiner: str,
    fields: int,
    bags: int,
    op: str = "field_embedding",
) -> Example:
    e = Example()
    sizes = [5, 7, 2, 9, 4][: fields + bags]
    if op == "checked_field_embedding":  # all ids of the requests have rows of their own
        sizes = [20] * len(sizes)
    inputs: list[Any] = [e.number("x", fields, kind="integer") if fields else None]
    for i in range(bags):
        inputs += e.batch(f"bag{i}", 12, values=i % 2 == 0)
    options = {"num_rows": sizes, "pooling": pooling, "bag_combiner": combiner}
    options |= row_format(form, 6)
    e.step(op, inputs, ["#0"], tables(sum(sizes), 6, form), **options)
    if combiner == "mean" and bags:  # weights that do not add up to nearly 0
        e.groups = {s: (i, None, n) for s, (i, _, n) in e.groups.items()}
        inputs = [x if not str(x).endswith("values") else None for x in inputs]
        e.inputs = {k: v for k, v in e.inputs.items() if v != "values"}
        e.steps[0] = (op, inputs, *e.steps[0][2:])
    return e


def _keys(fields: int, ids: int) -> np.ndarray:
    from twml_ops import _core
    from twml_ops._category_hash import id_keys

    keys = id_keys(np.arange(ids)[:, None], np.arange(fields), _core.hash_ids)
    return np.unique(keys)


def _category_rows(single: int, bags: int, hashed: bool = False) -> Example:
    e = Example()
    keys = _keys(single + bags, 8)
    arrays = {"keys": keys, "rows": np.arange(len(keys)) % 4}
    inputs: list[Any] = [e.number("x", single, kind="integer")] if single else []
    parts = [e.batch(f"bag{i}", 12, values=False) for i in range(bags)]
    outputs = [f"#{i}" for i in range((single > 0) + bags)]
    if hashed:
        arrays["hashed"] = 1 + np.arange(single + bags)
    op = "learned_hash" if hashed else "category_rows"
    e.step(op, [*inputs, *(p[0] for p in parts)], outputs, arrays, single=single)
    of_bags = [
        part
        for name, bag in zip(outputs[single > 0 :], parts, strict=True)
        for part in (name, None, bag[2])
    ]
    options = {"num_rows": [5] * (single + bags), "pooling": None, "bag_combiner": "sum"}
    matrix = outputs[0] if single else None
    table = tables(5 * (single + bags), 3, "float32")
    e.step("field_embedding", [matrix, *of_bags], ["#e"], table, **options)
    return e


def _statistics() -> Example:
    from twml_ops import _core
    from twml_ops._category_hash import category_keys

    e = Example()
    ids = np.stack(np.meshgrid(np.arange(4), np.arange(4), np.arange(2)), -1).reshape(-1, 3)
    crosses = [[0, 1], [0, 1, 2]]
    keys = np.unique(category_keys(ids, crosses, _core.hash_ids, np.take, np.concatenate))
    arrays = {"keys": keys, "statistics": _normal(len(keys) + 1)}
    x = e.number("x", 3, kind="integer")
    e.step("category_statistics", [x], ["#0"], arrays, crosses=crosses)
    return e


def _quantiles() -> Example:
    e = Example()
    boundaries = np.sort(_normal(3, 5), axis=1)
    boundaries[1, 3:] = np.inf
    boundaries[2] = np.inf
    inputs = [e.number("x", 3), e.number("there", 3, kind="bool")]
    e.step("field_quantiles", inputs, ["#b", "#r"], {"boundaries": boundaries})
    table = tables(21, 2, "float32")
    options = {"num_rows": [7, 7, 7], "pooling": None, "bag_combiner": "sum"}
    e.step("field_embedding", ["#b"], ["#e"], table, **options)
    e.step("reshape", ["#e"], ["#f"], shape=[-1])
    e.step("concatenate", ["#f", "#r"], ["#0"], axis=-1)
    return e


def _logarithms() -> Example:
    e = Example()
    inputs = [e.number("x", 4), e.number("there", 4, kind="bool")]
    arrays = {"scale": _normal(4) + 3, "offset": _normal(4, seed=2)}
    e.step("field_logarithms", inputs, ["#0"], arrays, limit=3.0)
    return e


def _trees(optional: int) -> Example:
    e = Example()
    # Two ensembles of two trees: a root with two leaves each.
    features = np.int32([0, 0, 0, 2, 0, 0, 1, 0, 0, 3, 0, 0])
    children = np.int32([[i, i] for i in range(12)])
    for root in (0, 3, 6, 9):
        children[root] = root + 1, root + 2
    arrays = {
        "features": features,
        "thresholds": _normal(12),
        "missing_left": np.uint8([1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0]),
        "children": children,
        "values": _normal(12, seed=3),
        "roots": np.int32([[0, 3], [6, 9]]),
    }
    inputs = [e.number("x", 4)] + ([e.number("there", optional, kind="bool")] if optional else [])
    e.step("boosted_trees", inputs, ["#0"], arrays, num_optional=optional, max_depth=2)
    return e


def _merge(op: str, *shapes: tuple[int, ...], **options: Any) -> Example:
    e = Example()
    names = [e.number(f"x{i}", *shape) for i, shape in enumerate(shapes)]
    e.step(op, names, ["#0"], **options)
    return e


def _norm(bias: bool, nonfinite: str, values: bool = True) -> Example:
    e = Example()
    ids, values_name, splits = e.batch("x", 40, values)
    arrays = {"max_abs": np.abs(_normal(40)) * 2, "bias": _normal(40) if bias else None}
    options = {"epsilon": 1e-6, "nonfinite": nonfinite}
    e.step("max_norm", [ids, values_name, splits], ["#v"], arrays, **options)
    e.step("sparse_linear", [ids, "#v", splits], ["#0"], tables(40, 7, "float32"))
    return e


def _standardize(bias: bool, nonfinite: str, values: bool = True) -> Example:
    e = Example()
    ids, values_name, splits = e.batch("x", 40, values)
    moments = np.abs(np.random.default_rng(4).normal(size=(40, 3)))
    moments[::5] = 0  # never seen
    moments[1::5, 2] = 0  # always the same value
    arrays = {"moments": moments, "bias": _normal(40) if bias else None}
    options = {"epsilon": 1e-2, "clip": 1.5, "nonfinite": nonfinite}
    e.step("online_standardize", [ids, values_name, splits], ["#v"], arrays, **options)
    e.step("sparse_linear", [ids, "#v", splits], ["#0"], tables(40, 7, "float32"))
    return e


def _platt(units: int, from_logits: bool, nan: str) -> Example:
    e = Example()
    x = e.number("x", units)
    if nan == "base_rate":  # a column of NaN
        offset = np.zeros(units, np.float32)
        offset[0] = np.nan
        x = e.step("affine", [x], ["#a"], {"factor": np.ones_like(offset), "offset": offset})[0]
    slopes = _normal(units)
    slopes[-1] = 0
    arrays = {"slopes": slopes, "intercepts": _normal(units, seed=1)}
    arrays["base_rates"] = np.full(units, 0.25, np.float32)
    e.step("platt_scaling", [x], ["#0"], arrays, from_logits=from_logits, nan=nan)
    return e


def _wrap() -> Example:
    e = Example()
    ids, _, splits = e.batch("x", 12, values=False)
    e.step("wrap_ids", [ids], ["#i"], num_rows=5)
    e.step("sparse_linear", ["#i", None, splits], ["#0"], tables(5, 4, "float32"))
    return e


def _isotonic(units: int, corners: int) -> Example:
    e = Example()
    axes = np.sort(np.random.default_rng(8).normal(size=(2, units, corners)).astype(np.float32))
    arrays = {"corner_scores": axes[0], "corner_values": axes[1]}
    arrays["base_rates"] = np.full(units, 0.25, np.float32)
    e.step("isotonic_calibration", [e.number("x", units)], ["#0"], arrays, nan="propagate")
    return e


def _hash() -> Example:
    e = Example()
    ids, _, splits = e.batch("x", 1 << 40, values=False)
    e.step("hash_ids", [ids], ["#i"], bits=5)
    e.step("sparse_linear", ["#i", None, splits], ["#0"], tables(32, 4, "float32"))
    return e


def _casts() -> Example:
    """A matrix of integers that one step reads as integers and another one as floats."""
    e = Example()
    x = e.number("x", 2, kind="integer")
    options = {"num_rows": [5, 5], "pooling": "sum", "bag_combiner": "sum"}
    e.step("field_embedding", [x], ["#e"], tables(10, 3, "float32"), **options)
    e.step("dense", [x], ["#d"], {"kernel": _normal(2, 3)})
    e.step("add", ["#e", "#d"], ["#0"])
    return e


def dynamic_state(ids: np.ndarray, capacity: int, seed: int) -> dict[str, np.ndarray]:
    """The keys and the index of a `DynamicLookup` that has seen ids."""
    size = 1 << (2 * capacity - 1).bit_length()
    state = {name: np.zeros(capacity, np.int64) for name in ("keys", "last_used", "counts")}
    state["index"] = np.full(size, -1, np.int32)
    state |= {"sketch": np.zeros((4, 0), np.uint8), "header": np.zeros(4, np.int64)}
    arrays = [state[n] for n in ("keys", "last_used", "counts", "index", "sketch", "header")]
    _core.dynamic_lookup(ids, *arrays, training=True, seed=seed)
    return {name: state[name] for name in ("keys", "index")}


def _dynamic(capacity: int, seed: int = 3) -> Example:
    e = Example()
    batch = e.batch("x", 60)
    seen = np.random.default_rng(0).permutation(60)[:40]
    e.step("dynamic_lookup", batch[:1], ["#i"], dynamic_state(seen, capacity, seed), seed=seed)
    e.step("sparse_linear", ["#i", *batch[1:]], ["#0"], tables(capacity, 5, "float32"))
    return e


def _hash_strings(kind: str, columns: int) -> Example:
    e = Example()
    x = e.number("x", columns, kind=kind)
    keys = [[i, i + 7] for i in range(columns)]
    kinds = {"string": "strings", "integer": "integers", "bool": "bools"}
    e.step("hash_strings", [x], ["#i"], kind=kinds[kind], keys=keys)
    e.step("affine", ["#i"], ["#0"], {"factor": np.float32([1e-18]), "offset": np.float32([0])})
    return e


def _hash_bag(num_ids: int) -> Example:
    e = Example()
    x, _, splits = e.batch("x", num_ids, values=False)
    kind = "integers" if num_ids else "strings"
    e.step("hash_bag", [x, None, splits], ["#i", None, "#s"], kind=kind, keys=[[5, 6]])
    e.step("hash_ids", ["#i"], ["#h"], bits=5)
    e.step("sparse_linear", ["#h", None, "#s"], ["#0"], tables(32, 4, "float32"))
    return e


def _outputs() -> Example:
    """Three outputs: a part of another one, a matrix, and integers."""
    e = Example()
    x, n = e.number("x", 2, 3), e.number("n", 2, kind="integer")
    e.step("reshape", [x], ["#r"], shape=[6])
    e.step("slice", ["#r"], ["#s"], begin=1, size=2)
    keys = [[1, 2], [3, 4]]
    e.step("hash_strings", [n], ["#n"], kind="integers", keys=keys)
    e.step("outputs", ["#s", x, "#n"], ["#0"])
    e.outputs = {"part": [2], "matrix": [2, 3], "ids": [2]}
    return e


def _attention(fields: int, width: int, heads: int) -> Example:
    """The steps of a layer of a transformer's encoder."""
    e = Example()
    x = e.number("x", fields, width)
    parts = [
        e.step("dense", [x], [f"#{name}"], {"kernel": _normal(width, width, seed=i) / width})[0]
        for i, name in enumerate("qkv")
    ]
    e.step("self_attention", parts, ["#a"], num_heads=heads)
    e.step("add", [x, "#a"], ["#0"])
    return e


def _convolution(fields: int, width: int, size: int) -> Example:
    e = Example()
    e.step("patches", [e.number("x", fields, width)], ["#p"], size=size)
    e.step("dense", ["#p"], ["#0"], {"kernel": _normal(size * size, 3)})
    return e


def _logits() -> Example:
    e = Example()
    x = e.number("x", 2, 3)
    part = {"factor": np.float32([0.2]), "offset": np.float32([0.5])}  # some beyond 0 and 1
    e.step("affine", [x], ["#p"], part)
    e.step("logit", ["#p"], ["#0"])
    return e


def _combination(fields: int, outputs: int, width: int) -> Example:
    e = Example()
    kernel = {"kernel": _normal(fields, outputs)}
    e.step("combine_vectors", [e.number("x", fields, width)], ["#0"], kernel)
    return e


def examples() -> dict[str, Example]:
    """An example of every operation and of its options."""
    made: dict[str, Example] = {}
    for form in FORMS:
        for width in WIDTHS:
            made[f"sparse_linear_{form}_{width}"] = _sparse_linear(form, width, width % 2 == 0)
        made[f"sparse_linear_{form}_values"] = _sparse_linear(form, 17, True, bias=False)
        made[f"sparse_linear_{form}_binary"] = _sparse_linear(form, 16, False)
        for pooling in (None, "sum", "mean", "sqrtn"):
            made[f"field_embedding_{form}_{pooling}"] = _embedding(form, pooling, "sum", 3, 2)
    for rows in WIDTHS:
        for columns in WIDTHS:
            made[f"dense_{rows}_{columns}"] = _dense(rows, columns, rows % 2 == 0)
    made["dense_of_vectors"] = _dense(5, 6, True, 3)
    made["dense_wide"] = _dense(100, 70, True)
    for name in (
        *("elu", "exponential", "gelu", "relu", "sigmoid"),
        *("silu", "softmax", "softplus", "swish", "tanh"),
    ):
        made[f"activation_{name}"] = _activation(name, fused=False)
        made[f"activation_{name}_fused"] = _activation(name, fused=True)
    for op in ("percentile_discretize", "hashing_discretize"):
        made[op] = _buckets(op)
        made[f"{op}_drop"] = _buckets(op, unknown="drop", missing="drop", side="right")
        made[f"{op}_keep"] = _buckets(op, keep_inputs=True)
    for combiner in ("mean", "sqrtn"):
        made[f"field_embedding_{combiner}"] = _embedding("float32", None, combiner, 2, 3)
        made[f"field_embedding_{combiner}_pooled"] = _embedding("float32", "sum", combiner, 0, 3)
    made["checked_field_embedding"] = _embedding(
        "int8", None, "sum", 3, 2, "checked_field_embedding"
    )
    made["field_embedding_matrix"] = _embedding("float32", None, "sum", 5, 0)
    made["dynamic_lookup"] = _dynamic(50)
    made["dynamic_lookup_full"] = _dynamic(16)
    for kind in ("string", "integer", "bool"):
        made[f"hash_strings_{kind}"] = _hash_strings(kind, 3)
    made["hash_bag"] = _hash_bag(0)
    made["hash_bag_integers"] = _hash_bag(9)
    made["outputs"] = _outputs()
    made["slice"] = _merge("slice", (5,), begin=2, size=3)
    made["category_rows"] = _category_rows(2, 0)
    made["category_rows_bags"] = _category_rows(2, 2)
    made["category_rows_bags_only"] = _category_rows(0, 2)
    made["learned_hash"] = _category_rows(2, 0, hashed=True)
    made["learned_hash_bags"] = _category_rows(1, 2, hashed=True)
    made["category_statistics"] = _statistics()
    made["field_quantiles"] = _quantiles()
    made["field_logarithms"] = _logarithms()
    made["boosted_trees"] = _trees(0)
    made["boosted_trees_optional"] = _trees(2)
    for op in ("add", "multiply", "average"):
        made[op] = _merge(op, (5,), (5,), (5,))
        made[f"{op}_broadcast"] = _merge(op, (3, 5), (1, 5), (3, 1))
    made["mean"] = _merge("mean", (5,), (5,))
    made["concatenate"] = _merge("concatenate", (5,), (2,), axis=-1)
    made["concatenate_vectors"] = _merge("concatenate", (2, 5), (3, 5), axis=1)
    made["concatenate_last"] = _merge("concatenate", (2, 5), (2, 1), axis=-1)
    made["reshape"] = _merge("reshape", (2, 6), shape=[-1, 4])
    made["affine"] = Example()
    made["affine"].step(
        "affine",
        [made["affine"].number("x", 6)],
        ["#0"],
        {"factor": _normal(6), "offset": _normal(6, seed=1)},
    )
    made["affine_scalar"] = Example()
    made["affine_scalar"].step(
        "affine",
        [made["affine_scalar"].number("x", 2, 3)],
        ["#0"],
        {"factor": _normal(1), "offset": _normal(1, seed=1)},
    )
    for scale in (0.0, 0.5):
        made[f"cross_{scale}"] = _merge("cross", (6,), (6,), (6,), diag_scale=scale)
    for pool in (False, True):
        made[f"factorization_machine_{pool}"] = _merge(
            "factorization_machine", (6,), (6,), (6,), pool=pool
        )
        made[f"factorization_machine_stacked_{pool}"] = _merge(
            "factorization_machine", (3, 6), pool=pool
        )
    made["dot"] = _merge("dot", (3,), (3, 5))
    made["dot_interaction"] = _merge("dot_interaction", (6, 5))
    made["dot_interaction_many"] = _merge("dot_interaction", (39, 16))
    for fields, width, heads in ((5, 8, 2), (17, 32, 1), (1, 3, 3), (20, 6, 1)):
        made[f"self_attention_{fields}_{width}_{heads}"] = _attention(fields, width, heads)
    for fields, width, size in ((6, 5, 3), (2, 3, 4), (1, 2, 7), (3, 4, 1)):
        made[f"patches_{fields}_{width}_{size}"] = _convolution(fields, width, size)
    for fields, outputs, width in ((5, 3, 8), (1, 17, 3), (20, 1, 17), (4, 4, 16)):
        name = f"combine_vectors_{fields}_{outputs}_{width}"
        made[name] = _combination(fields, outputs, width)
    for width in (1, 8, 17):
        made[f"layer_normalization_{width}"] = _merge(
            "layer_normalization", (3, width), epsilon=1e-3
        )
    made["logit"] = _logits()
    for nonfinite in ("error", "zero"):
        made[f"max_norm_{nonfinite}"] = _norm(nonfinite == "zero", nonfinite)
    made["max_norm_binary"] = _norm(True, "error", values=False)
    for nonfinite in ("error", "zero"):
        made[f"online_standardize_{nonfinite}"] = _standardize(nonfinite == "zero", nonfinite)
    made["online_standardize_binary"] = _standardize(True, "error", values=False)
    made["platt_scaling"] = _platt(1, False, "propagate")
    made["platt_scaling_of_logits"] = _platt(3, True, "base_rate")
    made["isotonic_calibration"] = _isotonic(1, 9)
    made["isotonic_calibration_of_columns"] = _isotonic(3, 2)
    made["isotonic_calibration_of_one_corner"] = _isotonic(2, 1)
    made["hash_ids"] = _hash()
    made["wrap_ids"] = _wrap()
    made["conversions"] = _casts()
    return made
