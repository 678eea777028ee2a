"""All networks of a space in one, which share weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import concatenated
from twml_ops.research.architecture_search.costs import Costs
from twml_ops.research.architecture_search.field_choices import FieldProjections, SharedVectors
from twml_ops.research.architecture_search.gate import Gate
from twml_ops.research.architecture_search.space import Architecture, SearchSpace


class Supernet:
    """A model that contains every network of a space.

    It is only for searches: it is neither saved nor exported.

    Args:
        space: The space.
        schema: The features and labels.
        dataset: Batches in the layout "fields", read once, to which the inputs are adapted.

    Attributes:
        model: Features to probabilities, as of `research.dhen`; in training with random weights of
            the candidates, in inference with the weights that `fix` has set.
        gates: The layers that have the logits of the candidates, by the name of the choice.
        costs: The costs of the networks.
    """

    def __init__(self, space: SearchSpace, schema: Schema, dataset: tf.data.Dataset) -> None:
        self._space = space
        decisions = space.decisions(schema)
        self.gates = {n: Gate(d.choice, d.items, name=f"gate_{n}") for n, d in decisions.items()}
        width = space.widths.candidates[-1] if space.widths else space.units
        fields = space.fields(schema, dataset, space.max_rows(schema, {}), width, None)
        vectors = fields.vectors()
        if "max_rows" in self.gates:
            shared = SharedVectors(len(schema.fields), name="shared_vectors")(vectors)
            vectors = self.gates["max_rows"]([vectors, shared, fields.category_rows])
        if space.widths is not None:
            vectors = self.gates["field_units"]([vectors])
            vectors = FieldProjections(space.units, name="projections")(vectors)

        def interact(x: Any) -> Any:
            parts = [self.gates[c.name](c.mixed(x)) for c in space.interactions]
            parts.append(space.linear.chosen(x, True, "linear_block"))
            return concatenated(parts, "interactions")

        def dense(x: Any) -> Any:
            for choice in space.dense:
                x = self.gates[choice.name](choice.mixed(x))
            return x

        self.model = space.assemble(fields, vectors, interact, dense)
        self.costs = Costs(space, schema, fields)

    @property
    def logits(self) -> list[Any]:
        """The variables with the logits of the candidates."""
        return [gate.logits for gate in self.gates.values()]

    @property
    def network_variables(self) -> list[Any]:
        """All other trainable variables."""
        logits = {id(variable) for variable in self.logits}
        return [v for v in self.model.trainable_variables if id(v) not in logits]

    def probabilities(self) -> dict[str, npt.NDArray[Any]]:
        """The probabilities of the candidates of each choice, softmax(α).

        Returns:
            Float [K] of each choice, or [fields, K].
        """
        return {name: np.asarray(g.probabilities()) for name, g in self.gates.items()}

    def fix(self, architecture: Architecture) -> None:
        """Makes the model in inference the network of an architecture, with the shared weights.

        Args:
            architecture: A candidate of each choice.
        """
        for name, weights in self._space.one_hot(architecture).items():
            self.gates[name].fixed.assign(weights)

    def cost(self, kind: str, architecture: Architecture) -> float:
        """The cost of an architecture, see `Costs.of`.

        Args:
            kind: Name of the cost.
            architecture: A candidate of each choice.

        Returns:
            The cost.
        """
        return float(self.costs.of(kind, self._space.one_hot(architecture)))
