"""The options that models on fields share: type, default and meaning of each are said here.

A builder has them as `**options: Unpack[VectorOptions]`, say, by which type checkers know them. The
decorator `shares` adds the defaults and writes the options into the signature and the docstring,
where `help`, `--set`, `twml-ops info`, `twml-ops tune` and docs/models.md find them.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
import typing
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Annotated, Any, TypedDict, TypeVar

Builder = TypeVar("Builder", bound=Callable[..., Any])


class LinearOptions(TypedDict, total=False):
    """The options of all models on fields: type, default, meaning."""

    linear_l2: Annotated[float, 0.01, "strength of the L2 regularization of the linear part."]
    num_bins: Annotated[int, 20, "largest number of buckets of a continuous field."]
    min_count: Annotated[
        int,
        2,
        """smallest number of occurrences of a category with a row of its own; all rarer categories
        of a field share one.""",
    ]
    max_rows: Annotated[
        int | Sequence[int],
        1 << 18,
        """largest number of rows of a field, for its most frequent categories; an integer, or one
        for each categorical field, bags last.""",
    ]


class VectorOptions(LinearOptions, total=False):
    """The options of models that have a vector for each field."""

    units: Annotated[int, 8, "width D of the vector of a field."]
    field_units: Annotated[
        Sequence[str] | None,
        None,
        """widths of single fields, such as city:4,device:2, or auto: the fourth root of the number
        of rows of a field, at most `units`. The others have the width `units`. Models that combine
        vectors of one width first multiply the vectors of a field by a matrix of the field.""",
    ]
    l2: Annotated[
        float, 0.1, "strength of the L2 regularization of the vectors that a batch looks up."
    ]
    stddev: Annotated[float, 0.01, "standard deviation of the initial vectors."]


class NetOptions(VectorOptions, total=False):
    """The options of models that have dense layers behind the vectors."""

    dropout: Annotated[
        float, 0.2, "share of the outputs of the dense layers that is dropped in training."
    ]
    embedding_dropout: Annotated[
        float, 0.2, "share of the components of the vectors that is dropped in training."
    ]


class HashedNetOptions(NetOptions, total=False):
    """The options of models whose categories can have the rows of a learned hash."""

    learned_hash: Annotated[
        str | None,
        None,
        """file that `twml-ops learn-hash` wrote for the features, which gives rows to the
        categories instead of `min_count` and `max_rows`; None: these do.""",
    ]


# `twml-ops tune` draws options in the order of the signature: another one would change the trials
# of a seed. "" stands for all options that only one model has.
_ORDER = (
    *("units", "field_units", "", "dropout", "embedding_dropout", "l2", "linear_l2", "num_bins"),
    *("min_count", "max_rows", "statistics", "crosses", "trees", "tree_ensembles", "stddev"),
    *("learned_hash", "tree_share"),
)


def shares(options: Any, **defaults: Any) -> Callable[[Builder], Builder]:
    """Gives a builder options that several models have, in place of its argument `**options`.

    Args:
        options: class of the options, the same as in the annotation of `**options`.
        **defaults: the defaults of this model that differ.

    Returns:
        A decorator of functions `build(schema, dataset, *, ..., **options)`.
    """
    shared, text = [], []
    for name, hint in typing.get_type_hints(options, include_extras=True).items():
        kind, default, meaning = typing.get_args(hint)
        default = defaults.get(name, default)
        shared.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        entry = f"{name}: {' '.join(meaning.split())}"
        text.append(textwrap.fill(entry, 96, initial_indent=" " * 4, subsequent_indent=" " * 8))

    def share(build: Builder) -> Builder:
        (*own, _), by = inspect.signature(build).parameters.values(), Parameter.KEYWORD_ONLY
        named = sorted(
            [*(p for p in own if p.kind is by), *shared],
            key=lambda p: _ORDER.index(p.name if p.name in _ORDER else ""),
        )
        signature = inspect.Signature([*(p for p in own if p.kind is not by), *named])

        @functools.wraps(build)
        def built(*args: Any, **kwargs: Any) -> Any:
            try:
                call = signature.bind(*args, **kwargs)
            except TypeError as e:
                raise TypeError(f"{build.__name__}() {e}") from None
            call.apply_defaults()
            return build(*call.args, **call.kwargs)

        setattr(built, "__signature__", signature)  # noqa: B010  (mypy: no such attribute)
        built.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        if build.__doc__:  # not with python -OO
            before, _, after = inspect.cleandoc(build.__doc__).partition("    **options: ")
            built.__doc__ = before + "\n".join(text) + after[after.index("\n") :]
        return typing.cast(Builder, built)

    return share
