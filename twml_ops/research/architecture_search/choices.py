"""The choices of the package: modules and widths behind the vectors of fields, and what each field
chooses by itself, the width of its vectors and the rows of its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops.research.architecture_search.choice import Choice, ascending, masks
from twml_ops.research.architecture_search.measures import count_flops
from twml_ops.research.dhen_block import DHEN_MODULES, DHENBlock


class Interaction(Choice):
    """Whether a network has a module of DHEN: [B, F, D] → [B, outputs, D], or nothing.

    The module is `research.DHENBlock([module], outputs)`, side by side with the modules of other
    choices (`research.dhen` with the ensemble "parallel"). While the search trains, its output is
    multiplied by the weight of the candidate True.

    Args:
        module: "attention", "convolution", "cross" or "dot", or a layer [B, F, D] → [B, L, D] of
            your own. Its name is that of the choice.
        outputs: L, number of vectors of the module; not used for your own layer.

    Raises:
        ValueError: There is no module of this name.
    """

    def __init__(self, module: Any, outputs: int = 8) -> None:
        if isinstance(module, str) and module not in DHEN_MODULES:
            expected = ", ".join(DHEN_MODULES)
            raise ValueError(f"module must be a layer or one of {expected}, got {module!r}")
        super().__init__(module if isinstance(module, str) else module.name, (False, True))
        self.module, self.outputs = module, int(outputs)
        self._costs = cache(self._count)

    def _block(self, name: str | None = None) -> DHENBlock:
        if isinstance(self.module, str):
            return DHENBlock([self.module], self.outputs, name=name)
        copy = type(self.module).from_config(self.module.get_config())
        return DHENBlock([copy], name=name)

    def chosen(self, x: Any, candidate: Any, name: str) -> Any:
        """See the base class; None without the module."""
        return self._block(name)(x) if candidate else None

    def mixed(self, x: Any) -> list[Any]:
        """The output of the module."""
        return [self._block(f"{self.name}_block")(x)]

    def combine(self, tensors: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """See the base class."""
        return weights[1] * tensors[0]

    def _count(self, fields: int, width: int) -> tuple[int, int, int]:
        block = self._block()
        flops = count_flops(block, (fields, width))
        vectors = block.compute_output_shape((None, fields, width))[1]
        return vectors * width, flops, block.count_params()

    def size(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """See the base class."""
        return self._costs(*shape)[0] if candidate else 0

    def flops(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """See the base class."""
        return self._costs(*shape)[1] if candidate else 0

    def parameters(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """See the base class."""
        return self._costs(*shape)[2] if candidate else 0


class DenseWidth(Choice):
    """The width of a dense layer with ReLU, and whether there is one: [B, n] → [B, width].

    Width 0 leaves the layer out, so that several such choices search the depth. All widths are the
    first columns of one matrix: with weights w of the candidates u, y_j = relu(W x + b)_j times
    sum_k w_k [j < u_k], plus w_0 x_j (Wan et al. 2020, "FBNetV2: Differentiable Neural Architecture
    Search for Spatial and Channel Dimensions", section 3.1).

    Args:
        name: Its name.
        candidates: Ascending widths.
        dropout: Share of the outputs that is dropped in training.

    Raises:
        ValueError: The widths are not ascending, or all are 0.
    """

    def __init__(self, name: str, candidates: Sequence[int], dropout: float = 0.2) -> None:
        super().__init__(name, ascending(name, candidates, 0))
        if self.candidates[-1] < 1:
            raise ValueError(f"candidates of {name!r} must have a positive width, got only 0")
        self.dropout = float(dropout)

    def chosen(self, x: Any, candidate: Any, name: str) -> Any:
        """See the base class."""
        if not candidate:
            return x
        x = tf.keras.layers.Dense(candidate, activation="relu", name=name)(x)
        return tf.keras.layers.Dropout(self.dropout, name=f"{name}_dropout")(x)

    def mixed(self, x: Any) -> list[Any]:
        """The input, and the output of the largest width."""
        return [x, self.chosen(x, self.candidates[-1], f"{self.name}_dense")]

    def combine(self, tensors: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """See the base class. Components that a narrower candidate lacks are 0."""
        x, y = tensors
        y *= tf.linalg.matvec(tf.constant(masks(self.candidates)), weights, transpose_a=True)
        if self.candidates[0]:
            return y
        missing = int(x.shape[1]) - int(y.shape[1])
        x = tf.pad(x, [[0, 0], [0, max(-missing, 0)]])
        return tf.pad(y, [[0, 0], [0, max(missing, 0)]]) + weights[0] * x

    def size(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """See the base class."""
        return candidate or shape[0]

    def flops(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """2 n width."""
        return 2 * shape[0] * candidate

    def parameters(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """(n + 1) width."""
        return (shape[0] + 1) * candidate


class FieldWidths:
    """The width of each field's vectors: [B, F, D] → [B, F, D] with zeros behind the width.

    All widths are the first components of one vector (mixed dimensions, Ginart et al. 2021). In the
    network that is found, a table has vectors of the width only.

    Args:
        candidates: K ascending widths.

    Attributes:
        name: `field_units`, the option of `research.dhen`.
        candidates: The widths.

    Raises:
        ValueError: They are not ascending positive integers.
    """

    name = "field_units"

    def __init__(self, candidates: Sequence[int]) -> None:
        self.candidates = ascending(self.name, candidates, 1)

    def combine(self, tensors: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """Masks the vectors.

        Args:
            tensors: The vectors [B, F, D], D the largest width. Those behind the fields of the
                weights, of raw sparse ids, are kept.
            weights: Float [F, K].

        Returns:
            [B, F, D].
        """
        kept = tf.matmul(weights, tf.constant(masks(self.candidates)))
        missing = int(tensors[0].shape[1]) - int(kept.shape[0])
        return tensors[0] * tf.pad(kept, [[0, missing], [0, 0]], constant_values=1.0)


class FieldRows:
    """How many categories of a field have a row of their own; all others share one.

    With weights w of the candidates R, row r of the table, numbered by frequency from 1, gives
    p E_r + (1 - p) S, where p = sum_k w_k [r ≤ R_k] and S is a vector of the field.

    Args:
        candidates: K ascending numbers of rows, as `max_rows` of `layers.CategoryRows`.

    Attributes:
        name: `max_rows`, the option of `research.dhen`.
        candidates: The numbers.

    Raises:
        ValueError: They are not ascending positive integers.
    """

    name = "max_rows"

    def __init__(self, candidates: Sequence[int]) -> None:
        self.candidates = ascending(self.name, candidates, 1)

    def combine(self, tensors: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """Replaces the vectors of rows that narrower tables lack.

        Args:
            tensors: The vectors [B, F, D], of which the first G are of categorical fields; the
                shared vectors [B, G, D]; and the rows [B, G].
            weights: Float [G, K].

        Returns:
            [B, F, D].
        """
        vectors, shared, rows = tensors
        count = int(rows.shape[1])
        has_row = tf.cast(rows[:, :, None] <= tf.constant(self.candidates, rows.dtype), tf.float32)
        kept = tf.einsum("bgk,gk->bg", has_row, weights)[:, :, None]
        mixed = kept * vectors[:, :count] + (1 - kept) * shared
        return tf.concat([mixed, vectors[:, count:]], axis=1)

    def rows(self, num_rows: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Rows of the table of each field with each candidate.

        Args:
            num_rows: Rows of each field with all its categories; 2 of them belong to none.

        Returns:
            Float [G, K].
        """
        own = np.minimum(np.array(self.candidates), np.array(num_rows)[:, None] - 2)
        return (own + 2).astype(np.float32)


FieldChoice = FieldWidths | FieldRows


class SharedVectors(tf.keras.layers.Layer):
    """A trained vector of each field: inputs [B, any, D] → [B, num_fields, D].

    Args:
        num_fields: G.
        **kwargs: Arguments of `tf.keras.layers.Layer`.
    """

    def __init__(self, num_fields: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_fields = num_fields

    def build(self, input_shape: Any) -> None:
        """Creates the vectors."""
        shape = (self.num_fields, int(input_shape[2]))
        self.vectors = self.add_weight(name="vectors", shape=shape, initializer="zeros")
        super().build(input_shape)

    def call(self, inputs: Any) -> tf.Tensor:
        """The vectors, for each example."""
        vectors = tf.convert_to_tensor(self.vectors)
        return tf.broadcast_to(vectors, tf.concat([tf.shape(inputs)[:1], tf.shape(vectors)], 0))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[B, num_fields, D]."""
        return (input_shape[0], self.num_fields, input_shape[2])


class FieldProjections(tf.keras.layers.Layer):
    """Multiplies the vectors of each field by a matrix of it: [B, F, D] → [B, F, units].

    Args:
        units: Width of the outputs.
        **kwargs: Arguments of `tf.keras.layers.Layer`.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape: Any) -> None:
        """Creates the matrices."""
        shape = (*map(int, input_shape[1:]), self.units)
        scale = shape[1] ** -0.5
        uniform = tf.keras.initializers.RandomUniform(-scale, scale)
        self.matrices = self.add_weight(name="matrices", shape=shape, initializer=uniform)
        super().build(input_shape)

    def call(self, inputs: Any) -> tf.Tensor:
        """The products."""
        return tf.einsum("bfd,fdu->bfu", inputs, tf.convert_to_tensor(self.matrices))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[B, F, units]."""
        return (*input_shape[:2], self.units)
