"""The layout of the batches that a model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from twml_ops.data import LayoutName

Builder = TypeVar("Builder", bound=Callable[..., Any])

_FIELDS = ("continuous", "continuous_present", "categorical")


def takes(layout: LayoutName) -> Callable[[Builder], Builder]:
    """Declares the layout of the batches that a builder and its model take.

    A builder without this decorator takes the layout "ragged".

    Args:
        layout: "ragged", "fields" or "keyed_fields", as of `data.Source.dataset`.

    Returns:
        A decorator of functions `build(schema, dataset, **options)`.
    """

    def mark(build: Builder) -> Builder:
        setattr(build, "layout", layout)  # noqa: B010  (mypy: functions have no such attribute)
        return build

    return mark


def layout_of(model: Any, options: Mapping[str, Any] | None = None) -> LayoutName:
    """The layout of the batches that a model takes.

    Args:
        model: a builder, for which `takes` declares the layout, or an object with the attribute
            `inputs` of Keras' functional models, whose names determine the layout.
        options: the options that a builder is called with; None: its defaults. A model of fields
            that gets trees by its option `trees` takes row keys as well.

    Returns:
        "ragged", "fields" or "keyed_fields", for `data.Source.dataset(layout=...)`.
    """
    inputs = getattr(model, "inputs", None)
    if inputs is None:
        declared: LayoutName = getattr(model, "layout", "ragged")
        if declared == "fields" and (options or {}).get("trees", False) is not False:
            return "keyed_fields"
        return declared
    names = [t.name.split(":")[0] for t in tf.nest.flatten(inputs)]
    if "row_keys" in names:
        return "keyed_fields"
    fields = any(name in _FIELDS or name.startswith("bag_") for name in names)
    return "fields" if fields else "ragged"
