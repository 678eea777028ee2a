"""Costs of networks as differentiable functions of the weights of candidates."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields
from twml_ops.research.architecture_search.choice import Choice
from twml_ops.research.architecture_search.measures import choice_latency, width_latency
from twml_ops.research.architecture_search.space import SearchSpace, Weights

COSTS = ("flops", "bytes", "latency")
"""The names of the costs."""
_Of = Callable[[Choice, Any, Any], Any]


class Costs:
    """The costs of the networks of a space.

    Each cost is a polynomial that is linear in the weights of each choice. At probabilities it is
    therefore the expectation of the cost of a network that is drawn from them; at weights with
    single ones it is the cost of that network. Costs of operators that depend on one choice only
    are the tables of FBNet (Wu et al. 2019); Krishna et al. 2021, "Differentiable NAS Framework and
    Application to Ads CTR Prediction", have such costs for the tables and dense layers of a DLRM.

    Args:
        space: The space.
        schema: The features.
        fields: The inputs, with all rows.
    """

    def __init__(self, space: SearchSpace, schema: Schema, fields: Fields) -> None:
        self._space = space
        self._labels = len(fields.labels)
        self._num_rows = fields.num_rows
        self._categorical = len(schema.fields)
        self._numbers = 0 if fields.numbers is None else int(fields.numbers.shape[1])
        self._sparse_dim = schema.sparse_dim
        vectors = len(fields.num_rows) + bool(schema.sparse_dim) + bool(self._numbers)
        self.shape = (vectors, space.units)
        self._bottom = [self._numbers, *space.fixed["bottom"], space.units]
        self._latencies: dict[str, Any] | None = None

    def of(self, kind: str, weights: Weights) -> Any:
        """A cost.

        Args:
            kind: "flops": of one example, 2 for each multiplication of a matrix product. "bytes":
                of the trainable parameters. "latency": milliseconds for a batch of 256 examples, as
                the sum of the measured times of the parts that are chosen.
            weights: Of the candidates; tensors or arrays.

        Returns:
            A scalar.

        Raises:
            ValueError: There is no such cost.
        """
        if kind not in COSTS:
            raise ValueError(f"costs must be some of {', '.join(COSTS)}, got {kind!r}")
        return {"flops": self._flops, "bytes": self._bytes, "latency": self._latency}[kind](weights)

    def _flops(self, weights: Weights) -> Any:
        linear = 2 * self._numbers * self._labels
        bottom = 2 * sum(a * b for a, b in itertools.pairwise(self._bottom))
        projections = 0
        if self._space.widths is not None:
            projections = 2 * self._space.units * tf.reduce_sum(self._widths(weights))
        net, size = self._net(weights, _choice_flops)
        return linear + bottom * bool(self._numbers) + projections + net + 2 * size * self._labels

    def _bytes(self, weights: Weights) -> Any:
        widths, rows = self._widths(weights), self._rows(weights)
        tables = tf.reduce_sum(rows * (widths + self._labels))
        if self._space.widths is not None:
            tables += self._space.units * tf.reduce_sum(widths)
        raw = self._sparse_dim * (self._space.units + self._labels + 1)  # and of MaxNorm
        bottom = sum((a + 1) * b for a, b in itertools.pairwise(self._bottom))
        numbers = (bottom + self._numbers * self._labels) * bool(self._numbers)
        net, size = self._net(weights, _choice_parameters)
        return 4 * (tables + raw + numbers + net + (size + 1) * self._labels)

    def _latency(self, weights: Weights) -> Any:
        times = self.latencies()
        return sum(tf.reduce_sum(times[name] * w) for name, w in weights.items())

    def latencies(self) -> dict[str, Any]:
        """The milliseconds of the candidates of each choice, measured once.

        Returns:
            Float [K] of each choice, or [fields, K].
        """
        if self._latencies is None:
            found: dict[str, Any] = {}
            for choice in self._space.interactions:
                found[choice.name] = choice_latency(choice, self.shape)
            size = self._net_sizes()
            for choice in self._space.dense:
                found[choice.name] = choice_latency(choice, (size,))
                size = choice.size(choice.candidates[-1], (size,))
            if self._space.widths is not None:
                fields, units = len(self._num_rows), self.shape[1]
                times = width_latency(self._space.widths.candidates, self._num_rows, units)
                found["field_units"] = np.tile(times / fields, [fields, 1])
            if self._space.rows is not None:
                count = len(self._space.rows.candidates)
                found["max_rows"] = np.zeros((self._categorical, count))
            self._latencies = {n: t.astype(np.float32) for n, t in found.items()}
        return self._latencies

    def _net_sizes(self) -> int:
        """Width of the input of the dense layers with all interactions."""
        every = [*self._space.interactions, self._space.linear]
        return sum(int(c.size(c.candidates[-1], self.shape)) for c in every)

    def _widths(self, weights: Weights) -> Any:
        """Expected width of each field's vectors."""
        choice = self._space.widths
        if choice is None:
            return tf.fill([len(self._num_rows)], float(self._space.units))
        return tf.reduce_sum(weights[choice.name] * np.array(choice.candidates, np.float32), -1)

    def _rows(self, weights: Weights) -> Any:
        """Expected rows of each field."""
        choice, count = self._space.rows, self._categorical
        every = np.array(self._num_rows, np.float32)
        if choice is None or not count:
            return every
        chosen = tf.reduce_sum(weights[choice.name] * choice.rows(self._num_rows[:count]), -1)
        return tf.concat([chosen, every[count:]], 0)

    def _net(self, weights: Weights, of: _Of) -> tuple[Any, Any]:
        """(Cost of interactions and dense layers, width of their output)."""
        linear = self._space.linear
        total: Any = float(of(linear, True, self.shape))
        size: Any = float(linear.size(True, self.shape))
        for choice in self._space.interactions:
            w = weights[choice.name]
            total += _expected(choice, w, of, self.shape)
            size += _expected(choice, w, _size, self.shape)
        for choice in self._space.dense:
            w = weights[choice.name]
            total += _expected(choice, w, of, (size,))
            size = _expected(choice, w, _size, (size,))
        return total, size


def _expected(choice: Choice, weights: Any, of: _Of, shape: Any) -> Any:
    return sum(weights[k] * of(choice, c, shape) for k, c in enumerate(choice.candidates))


def _size(choice: Choice, candidate: Any, shape: Any) -> Any:
    return choice.size(candidate, shape)


def _choice_flops(choice: Choice, candidate: Any, shape: Any) -> Any:
    return choice.flops(candidate, shape)


def _choice_parameters(choice: Choice, candidate: Any, shape: Any) -> Any:
    return choice.parameters(candidate, shape)
