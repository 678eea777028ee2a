"""Initializes variables from the checkpoint of another run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def warm_start(checkpoint: str, scopes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Initializes the variables of the graph that a checkpoint contains with their values.

    Call it in a `model_fn` after the model is built and before the optimizer creates its slots.
    Once the estimator has written a checkpoint of its own, it restores that one instead.

    Args:
        checkpoint: a checkpoint's prefix, or the folder of a run, of which the last one is used.
        scopes: scope in the checkpoint → scope in this graph: `{"old": "new"}` initializes `new/…`
            from `old/…`. Only variables in these scopes are initialized. The scope "" contains
            every variable, and `{"": ""}` is the default. A scope is a prefix of names that ends
            at a "/", or a whole name.

    Returns:
        Name in this graph → name in the checkpoint, for each initialized variable.

    Raises:
        ValueError: there is no checkpoint, a scope matches no variable, or the shape of a variable
            differs.
    """
    prefix = v1.train.latest_checkpoint(checkpoint) if tf.io.gfile.isdir(checkpoint) else checkpoint
    if prefix is None or not v1.train.checkpoint_exists(prefix):
        raise ValueError(f"checkpoint {checkpoint!r} does not exist")
    shapes = dict(tf.train.list_variables(prefix))
    step = v1.train.get_global_step()
    variables = {v.op.name: v for v in v1.global_variables() if v is not step}
    started: dict[str, str] = {}
    for old, new in (scopes or {"": ""}).items():
        found = {
            name: old_name
            for name in variables
            if (old_name := _renamed(name, new, old)) is not None and old_name in shapes
        }
        if not found:
            raise ValueError(
                f"scopes[{old!r}] = {new!r} matches no variable: the checkpoint has "
                f"{_some(shapes)}, the graph {_some(variables)}"
            )
        started |= found
    for name, old_name in started.items():
        if not variables[name].shape.is_compatible_with(shapes[old_name]):
            raise ValueError(
                f"variable {name} has the shape {variables[name].shape}, {old_name} in the "
                f"checkpoint {shapes[old_name]}"
            )
    v1.train.init_from_checkpoint(prefix, {old: variables[n] for n, old in started.items()})
    return started


def _renamed(name: str, new: str, old: str) -> str | None:
    """The name in the checkpoint of a variable in scope `new`."""
    new, old = new.rstrip("/"), old.rstrip("/")
    if not new:
        return f"{old}/{name}" if old else name
    if name != new and not name.startswith(new + "/"):
        return None
    rest = name[len(new) :]
    return old + rest if old else rest.removeprefix("/")


def _some(names: Any) -> str:
    listed = sorted(names)
    return ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "")
