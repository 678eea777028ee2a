"""The networks that a search can find: DHENs of one block, and what is chosen in them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, concatenated
from twml_ops.research.architecture_search.choice import Choice
from twml_ops.research.architecture_search.choices import (
    DenseWidth,
    FieldChoice,
    FieldRows,
    FieldWidths,
    Interaction,
)
from twml_ops.research.dhen import assembled, dhen

Architecture = Mapping[str, Any]
"""The candidate of each choice by its name; for a choice of fields a list of them."""
Weights = Mapping[str, Any]
"""Float [K] of each choice, or [fields, K]: a probability of each candidate, or a single 1."""

_SEARCHED = ("units", "field_units", "modules", "depth", "outputs", "ensemble", "hidden")
_FIXED = {
    p.name: p.default
    for p in inspect.signature(dhen).parameters.values()
    if p.kind is p.KEYWORD_ONLY and p.name not in (*_SEARCHED, "dropout", "max_rows")
}


class Decision(NamedTuple):
    """A choice of a space for certain features.

    Attributes:
        choice: What is chosen.
        items: The number of fields that choose; None: it is chosen once.
    """

    choice: Choice | FieldChoice
    items: int | None


class SearchSpace:
    """A DHEN of one block (`research.dhen`), parts of which are chosen.

    vectors of fields [B, F, units] ── interactions ── flat [B, n] ── dense layers ── logit

    The module `linear`, which costs least, is always there, since a block needs one.

    Args:
        field_units: Widths of the vectors in tables, from which each field chooses; none given:
            they are `units`.
        max_rows: Numbers of categories with a row of their own, from which each categorical field
            that is no bag chooses; none given: 2^18. Bags have the largest number.
        interactions: Names of modules of DHEN that may be left out, or choices of your own from
            the vectors [B, F, units] to [B, any, units].
        dense: Choices from [B, any] to [B, any], one after the other.
        units: Width of the vectors.
        outputs: Number of vectors of each module.
        **options: Other options of `research.dhen`: bottom, embedding_dropout, l2, linear_l2,
            num_bins, min_count and stddev.

    Attributes:
        interactions: The choices of interactions.
        dense: The choices of dense layers.

    Raises:
        ValueError: Nothing is chosen, two choices have one name, candidates are not in order, or
            `research.dhen` has no such option.
    """

    def __init__(
        self,
        *,
        field_units: Sequence[int] = (),
        max_rows: Sequence[int] = (),
        interactions: Sequence[str | Choice] = (),
        dense: Sequence[Choice] = (),
        units: int = 8,
        outputs: int = 8,
        **options: Any,
    ) -> None:
        unknown = sorted({*options} - {*_FIXED})
        if unknown:
            raise ValueError(f"options must be some of {', '.join(_FIXED)}, got {unknown[0]!r}")
        self.units, self.outputs, self.fixed = int(units), int(outputs), {**_FIXED, **options}
        self.widths = FieldWidths(field_units) if field_units else None
        self.rows = FieldRows(max_rows) if max_rows else None
        self.interactions = [
            Interaction(c, outputs) if isinstance(c, str) else c for c in interactions
        ]
        self.linear = Interaction("linear", outputs)
        self.dense = list(dense)
        fields = [c for c in (self.widths, self.rows) if c is not None]
        self._choices: list[Choice | FieldChoice] = [*fields, *self.interactions, *self.dense]
        names = [c.name for c in self._choices]
        if not names:
            raise ValueError("a space must have at least one choice, got none")
        if len({*names, "linear"}) <= len(names):
            raise ValueError(f"choices must have names of their own, not linear, got {names}")

    def decisions(self, schema: Schema) -> dict[str, Decision]:
        """What is chosen, by the name of the choice.

        Args:
            schema: The features; a choice for fields that they lack is left out.

        Returns:
            The decisions.
        """
        items: dict[Any, int | None] = {
            self.widths: len(schema.fields) + len(schema.continuous) + len(schema.bags),
            self.rows: len(schema.fields),
        }
        found = {c.name: Decision(c, items.get(c)) for c in self._choices}
        return {name: decision for name, decision in found.items() if decision.items != 0}

    def uniform(self, schema: Schema) -> dict[str, npt.NDArray[Any]]:
        """Weights with equal probabilities of the candidates of each choice.

        Args:
            schema: The features.

        Returns:
            Float [K] of each choice, or [fields, K].
        """
        made = {}
        for name, (choice, items) in self.decisions(schema).items():
            count = len(choice.candidates)
            made[name] = np.full((count,) if items is None else (items, count), 1 / count)
        return made

    def draw(self, probabilities: Weights, rng: np.random.Generator) -> dict[str, Any]:
        """A random architecture.

        Args:
            probabilities: Of the candidates.
            rng: Random numbers.

        Returns:
            The architecture.
        """
        noisy = {n: np.log(p + 1e-12) + rng.gumbel(size=p.shape) for n, p in probabilities.items()}
        return self.most_probable(noisy)

    def most_probable(self, probabilities: Weights) -> dict[str, Any]:
        """The candidate with the largest probability of each choice.

        Args:
            probabilities: Of the candidates.

        Returns:
            The architecture.
        """
        candidates = {c.name: c.candidates for c in self._choices}
        found: dict[str, Any] = {}
        for name, p in probabilities.items():
            best = np.argmax(p, axis=-1)
            values = candidates[name]
            found[name] = [values[i] for i in best] if best.ndim else values[int(best)]
        return found

    def largest(self, schema: Schema) -> dict[str, Any]:
        """The architecture that has the last candidate of each choice.

        Args:
            schema: The features.

        Returns:
            The architecture.
        """
        last = {
            n: np.arange(p.shape[-1]) * np.ones_like(p) for n, p in self.uniform(schema).items()
        }
        return self.most_probable(last)

    def one_hot(self, architecture: Architecture) -> dict[str, npt.NDArray[Any]]:
        """Weights with a 1 at each candidate of an architecture.

        Args:
            architecture: A candidate of each choice.

        Returns:
            Float [K] of each choice, or [fields, K].

        Raises:
            ValueError: A choice has no such candidate.
        """
        candidates = {c.name: list(c.candidates) for c in self._choices}
        made = {}
        for name, value in architecture.items():
            values = value if isinstance(value, list) else [value]
            wrong = [v for v in values if v not in candidates[name]]
            if wrong:
                raise ValueError(f"{name} must be of {candidates[name]}, got {wrong[0]!r}")
            rows = np.eye(len(candidates[name]), dtype=np.float32)
            hot = rows[[candidates[name].index(v) for v in values]]
            made[name] = hot if isinstance(value, list) else hot[0]
        return made

    def fields(
        self, schema: Schema, dataset: tf.data.Dataset, max_rows: Any, units: int, field_units: Any
    ) -> Fields:
        """The inputs of a network, adapted to data.

        Args:
            schema: The features and labels.
            dataset: Batches in the layout "fields", read once.
            max_rows: As of `research.dhen`.
            units: As of `research.dhen`.
            field_units: As of `research.dhen`.

        Returns:
            The inputs.
        """
        chosen = {"max_rows": max_rows, "units": units, "field_units": field_units}
        chosen["learned_hash"] = None
        return Fields(schema, dataset, {**self.fixed, **chosen})

    def assemble(self, fields: Fields, vectors: Any, interact: Any, dense: Any) -> tf.keras.Model:
        """A network of parts.

        Args:
            fields: The inputs.
            vectors: [B, F, units] of the fields.
            interact: A function from them, and the vector of the numbers, to [B, any, units].
            dense: A function from these side by side, [B, any], to [B, any].

        Returns:
            The model.
        """
        return assembled(fields, vectors, interact, dense, bottom=self.fixed["bottom"])

    def max_rows(self, schema: Schema, architecture: Architecture) -> Any:
        """The option `max_rows` of `research.dhen`.

        Args:
            schema: The features.
            architecture: A candidate of each choice.

        Returns:
            An integer, or a list with one for each categorical field.
        """
        if self.rows is None or self.rows.name not in architecture:
            return 1 << 18 if self.rows is None else self.rows.candidates[-1]
        return [*architecture[self.rows.name], *[self.rows.candidates[-1]] * len(schema.bags)]

    def field_units(self, schema: Schema, architecture: Architecture) -> list[str] | None:
        """The option `field_units` of `research.dhen`.

        Args:
            schema: The features.
            architecture: A candidate of each choice.

        Returns:
            "NAME:WIDTH" of each field, or None if fields do not choose their widths.
        """
        if self.widths is None or self.widths.name not in architecture:
            return None
        names = [*schema.fields, *schema.continuous, *schema.bags]
        pairs = zip(names, architecture[self.widths.name], strict=True)
        return [f"{name}:{width}" for name, width in pairs]

    def model(
        self, schema: Schema, dataset: tf.data.Dataset, architecture: Architecture
    ) -> tf.keras.Model:
        """The network of an architecture, untrained.

        Args:
            schema: The features and labels.
            dataset: As of `research.dhen`.
            architecture: A candidate of each choice.

        Returns:
            A model as of `research.dhen`.

        Raises:
            ValueError: A choice has no such candidate.
        """
        self.one_hot(architecture)
        widths = self.field_units(schema, architecture)
        rows = self.max_rows(schema, architecture)
        fields = self.fields(schema, dataset, rows, self.units, widths)

        def interact(x: Any) -> Any:
            parts = [c.chosen(x, architecture[c.name], c.name) for c in self.interactions]
            parts.append(self.linear.chosen(x, True, "linear_block"))
            return concatenated([part for part in parts if part is not None], "interactions")

        def dense(x: Any) -> Any:
            for choice in self.dense:
                x = choice.chosen(x, architecture[choice.name], choice.name)
            return x

        return self.assemble(fields, fields.vectors(), interact, dense)

    def options(self, schema: Schema, architecture: Architecture) -> dict[str, Any]:
        """The options of `research.dhen` that give the network of an architecture.

        Args:
            schema: The features.
            architecture: A candidate of each choice.

        Returns:
            Options that `twml-ops train --config` takes as `model_options`.

        Raises:
            ValueError: `research.dhen` has no option for a choice, or dense layers differ in their
                dropout.
        """
        widths = [c for c in self.dense if isinstance(c, DenseWidth)]
        modules = [c for c in self.interactions if isinstance(c, Interaction)]
        own = {*self.interactions, *self.dense} - {*widths, *modules}
        own |= {c for c in modules if not isinstance(c.module, str) or c.outputs != self.outputs}
        if own:
            names = ", ".join(sorted(c.name for c in own))
            raise ValueError(
                f"research.dhen has no option for {names}: train the model of `SearchSpace.model`"
            )
        dropouts = {c.dropout for c in widths}
        if len(dropouts) > 1:
            raise ValueError(f"dense layers must have one dropout, got {sorted(dropouts)}")
        hidden = [architecture[c.name] for c in widths]
        return {
            **{k: list(v) if isinstance(v, tuple) else v for k, v in self.fixed.items()},
            "units": self.units,
            "field_units": self.field_units(schema, architecture),
            "max_rows": self.max_rows(schema, architecture),
            "modules": [*(c.module for c in modules if architecture[c.name]), "linear"],
            "ensemble": "parallel",
            "depth": 1,
            "outputs": self.outputs,
            "hidden": [width for width in hidden if width],
            **({"dropout": dropouts.pop()} if dropouts else {}),
        }
