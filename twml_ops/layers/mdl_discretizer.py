"""Continuous features to buckets that tell the classes apart."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from twml_ops import core
from twml_ops._keras import serializable
from twml_ops.layers._adapt import Checkpoint, EntryReader, Progress, count_batches
from twml_ops.layers._arguments import check_positive_integer
from twml_ops.layers._discretizer import Boundaries
from twml_ops.layers.percentile_discretizer import PercentileDiscretizer


@serializable
class MDLDiscretizer(PercentileDiscretizer):
    """`PercentileDiscretizer` with cuts by labels: where they say more than they cost to describe.

    Fayyad and Irani, "Multi-Interval Discretization of Continuous-Valued Attributes for
    Classification Learning" (1993): a feature's examples are cut where the least class entropy is
    left, if the gain exceeds the minimum description length of the cut, and so on in both parts. A
    feature that tells nothing has one bucket. The training examples fall as in the paper, whose
    cuts are midpoints; here a boundary is the value beside the cut, as `side` has it.

    The examples are read once, into one sketch a class: exact while the sketches are (see `adapt`
    of `PercentileDiscretizer`), with ranks within epsilon beyond.

    Args:
        num_classes: labels are 0, 1, ..., num_classes - 1.
        side: as of `PercentileDiscretizer`, like the following.
        missing: "bucket" or "drop".
        unknown: "pass", "drop" or "error".
        pass_through_bits: the pass-through space has 2^pass_through_bits ids, 1 to 62.
        epsilon: rank error of `adapt` beyond what is exact.
        keep_inputs: an adapted feature's value, unless it is NaN, also stays beside its bucket.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range; called before `adapt`; an input of no batch form.
        tf.errors.InvalidArgumentError: an unknown feature where that is an error, when called.
    """

    def __init__(
        self,
        num_classes: int = 2,
        side: Literal["left", "right"] = "left",
        missing: Literal["bucket", "drop"] = "bucket",
        unknown: Literal["pass", "drop", "error"] = "pass",
        pass_through_bits: int = 18,
        epsilon: float = 1e-3,
        keep_inputs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            1, side, missing, unknown, pass_through_bits, epsilon, False, keep_inputs, **kwargs
        )
        self.num_classes = check_positive_integer("num_classes", num_classes)

    def adapt(
        self,
        data: Any,
        *,
        weighted: bool = False,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = 60.0,
        progress: bool | None = None,
    ) -> None:
        """Finds the boundaries; what an earlier `adapt` found is forgotten.

        Args:
            data: a `tf.data.Dataset` of (batch in any form, integer labels [B]), or one such pair.
            weighted: whether the elements are (batch, labels [B], weights [B]).
            checkpoint_dir: as of `PercentileDiscretizer.adapt`, like the following.
            checkpoint_seconds: between two writings.
            progress: whether a line on stderr shows how far it is.

        Raises:
            ValueError: the data is not as described, a label is out of range, or `checkpoint_dir`
                is of another adapt.
        """
        sketches = [self.new_sketch(weighted) for _ in range(self.num_classes)]
        about = {"num_classes": self.num_classes, "epsilon": self.epsilon, "weighted": weighted}
        checkpoint = Checkpoint(checkpoint_dir, checkpoint_seconds, about)
        position = 0
        if (found := checkpoint.load()) is not None:
            sketches, position = found
        shown = Progress(progress, count_batches(data))
        for ids, values, (labels, *weights) in EntryReader(data, 1 + int(weighted), position):
            bad = (labels != labels.astype(np.int64)) | (labels < 0) | (labels >= self.num_classes)
            if np.any(bad):
                got = labels[np.argmax(bad)]
                raise ValueError(f"labels must be in 0 .. {self.num_classes - 1}, got {got}")
            for c, sketch in enumerate(sketches):
                of_class = labels == c
                sketch.update(ids[of_class], values[of_class], *(w[of_class] for w in weights))
            position += 1
            shown.add(len(ids), position)
            checkpoint.save(sketches, position)
        shown.done()
        self.adapt_from_sketch(*sketches)
        checkpoint.done()

    def adapt_from_sketch(self, *sketches: Any) -> None:
        """Finds the boundaries from sketches (`new_sketch`), one of each class in order.

        Raises:
            ValueError: there are not `num_classes` of them.
        """
        if len(sketches) != self.num_classes:
            raise ValueError(f"sketches must be {self.num_classes}, got {len(sketches)}")
        features = np.unique(np.concatenate([s.feature_ids for s in sketches]))
        found = core.mdl_boundaries(list(sketches), features, self.side)
        self._assign(Boundaries(features, *found))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, and the size of the output if the layer is adapted."""
        config = super().get_config()
        del config["num_bins"], config["keep_sketch"]
        return {**config, "num_classes": self.num_classes}
