"""All networks of a space in one, which share weights, and the weights of their candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import concatenated
from twml_ops.research.architecture_search.choice import Choice
from twml_ops.research.architecture_search.choices import (
    FieldChoice,
    FieldProjections,
    SharedVectors,
)
from twml_ops.research.architecture_search.costs import Costs
from twml_ops.research.architecture_search.space import Architecture, SearchSpace


class Gate(tf.keras.layers.Layer):
    """Combines the candidates of a choice with weights from the Gumbel-softmax distribution.

    With logits α [..., K], the temperature τ and Gumbel noise g = -log(-log u), u uniform in
    (0, 1), the weights of a training step are softmax((α + g) / τ) (Jang et al. 2017, "Categorical
    Reparameterization with Gumbel-Softmax"; Maddison et al. 2017). One sample is drawn for all
    examples of a batch. In inference, the weights are the ones that `fix` set.

    Args:
        choice: The choice.
        items: None: one decision; otherwise the number of fields that decide.
        **kwargs: Arguments of `tf.keras.layers.Layer`.
    """

    def __init__(self, choice: Choice | FieldChoice, items: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.choice, self.items = choice, items

    def build(self, input_shape: Any) -> None:
        """Creates the logits, at first equal, the temperature and the weights for inference."""
        del input_shape
        candidates = len(self.choice.candidates)
        shape = (candidates,) if self.items is None else (self.items, candidates)
        equal = tf.keras.initializers.Constant(1 / candidates)
        self.logits = self.add_weight(name="logits", shape=shape, initializer="zeros")
        self.temperature = self._state("temperature", (), "ones")
        self.fixed = self._state("fixed", shape, equal)
        super().build(None)

    def _state(self, name: str, shape: tuple[int, ...], initializer: Any) -> Any:
        return self.add_weight(name=name, shape=shape, initializer=initializer, trainable=False)

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        """The combined candidates.

        Args:
            inputs: Tensors for the choice.
            training: Whether weights are drawn.

        Returns:
            What the choice makes of them.
        """
        weights = self.sample() if training else tf.convert_to_tensor(self.fixed)
        return self.choice.combine(inputs, weights)

    def sample(self) -> tf.Tensor:
        """Weights [..., K] of one step."""
        logits = tf.convert_to_tensor(self.logits)
        uniform = tf.random.uniform(tf.shape(logits), 1e-7, 1 - 1e-6)
        noise = -tf.math.log(-tf.math.log(uniform))
        return tf.nn.softmax((logits + noise) / tf.convert_to_tensor(self.temperature))

    def probabilities(self) -> tf.Tensor:
        """The probability [..., K] that a candidate has the largest α + g, which is softmax(α)."""
        return tf.nn.softmax(tf.convert_to_tensor(self.logits))


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
