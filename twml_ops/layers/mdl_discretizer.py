"""Discretization of continuous features by the labels of the examples."""

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
from twml_ops.placement.device import StatePlacement


@serializable
class MDLDiscretizer(PercentileDiscretizer):
    """`PercentileDiscretizer` with boundaries that separate the classes.

    Fayyad and Irani 1993, "Multi-Interval Discretization of Continuous-Valued Attributes for
    Classification Learning": the examples of a feature are cut where the remaining class entropy is
    lowest, if the information gain exceeds the minimum description length of the cut, and both
    parts are cut in the same way. A feature without information about the label has one bucket. The
    training examples get the same buckets as in the paper, whose cuts are midpoints between values;
    here a boundary is the value next to the cut, according to `side`.

    The examples are read once, into one sketch for each class. The result is exact while the
    sketches are (see `PercentileDiscretizer.adapt`); otherwise ranks have an error of at most
    epsilon.

    Args:
        num_classes: Number of classes; labels are 0, 1, ..., num_classes - 1.
        side: "left": buckets are intervals (a, b]. "right": [a, b).
        missing: "bucket": a NaN gets a bucket of its own. "drop": the entry is dropped.
        unknown: What happens to entries of features that were not adapted: "pass" keeps them,
            "drop" drops them, "error" makes the op fail.
        pass_through_bits: Size of the pass-through space, 1 to 62; it has 2^pass_through_bits ids.
        epsilon: Rank error of `adapt`, as a share of a feature's values; in [1e-5, 0.5].
        keep_inputs: Whether the value of an adapted feature, unless it is NaN, is kept next to its
            bucket.
        placement: "auto": the boundaries are in the memory of the host, or where a
            `placement_scope` of a `DevicePlacement` puts them. "host": in the memory of the host.
            "device": in the memory of the GPU, if there is one; this needs the library of CUDA
            kernels, and the layer cannot be used in `tf.data.Dataset.map`.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range. When called: the layer is not adapted, or the input
            has no batch form.
        tf.errors.InvalidArgumentError: When called, a feature is unknown and `unknown` is "error".
            With the boundaries on a GPU a later call raises it.
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
        placement: StatePlacement = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            1,
            side,
            missing,
            unknown,
            pass_through_bits,
            epsilon,
            keep_inputs=keep_inputs,
            placement=placement,
            **kwargs,
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
        """Computes the boundaries in one pass over the data, replacing earlier ones.

        Args:
            data: A `tf.data.Dataset` of (batch in any form, integer labels [B]), or one such pair.
            weighted: Whether the elements are (batch, labels [B], weights [B]).
            checkpoint_dir: Folder where the sketches are written periodically. After the process
                was killed, the same call on the same data resumes from there.
            checkpoint_seconds: Seconds between two writes.
            progress: Whether a line on stderr shows the progress; None: if stderr is a terminal.

        Raises:
            ValueError: The data is not as described, a label is out of range, or `checkpoint_dir`
                has the checkpoint of another call.
        """
        sketches = [self.new_sketch(weighted) for _ in range(self.num_classes)]
        about = {"num_classes": self.num_classes, "epsilon": self.epsilon, "weighted": weighted}
        checkpoint = Checkpoint(checkpoint_dir, checkpoint_seconds, about)
        position = 0
        if (found := checkpoint.load()) is not None:
            sketches, position = found
        progress_line = Progress(progress, count_batches(data))
        for ids, values, (labels, *weights) in EntryReader(data, 1 + int(weighted), position):
            bad = (labels != labels.astype(np.int64)) | (labels < 0) | (labels >= self.num_classes)
            if np.any(bad):
                got = labels[np.argmax(bad)]
                raise ValueError(
                    f"labels must be integers in [0, {self.num_classes - 1}], got {got}"
                )
            for c, sketch in enumerate(sketches):
                of_class = labels == c
                sketch.update(ids[of_class], values[of_class], *(w[of_class] for w in weights))
            position += 1
            progress_line.add(len(ids), position)
            checkpoint.save(sketches, position)
        progress_line.done()
        self.adapt_from_sketch(*sketches)
        checkpoint.done()

    def adapt_from_sketch(self, *sketches: Any) -> None:
        """Computes the boundaries from sketches, one for each class.

        Args:
            *sketches: `core.QuantileSketch` made by `new_sketch`, in the order of the classes.

        Raises:
            ValueError: The number of sketches is not `num_classes`.
        """
        if len(sketches) != self.num_classes:
            raise ValueError(
                f"expected {self.num_classes} sketches, one for each class, got {len(sketches)}"
            )
        features = np.unique(np.concatenate([s.feature_ids for s in sketches]))
        found = core.mdl_boundaries(list(sketches), features, self.side)
        self._assign(Boundaries(features, *found))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, and the output size if the layer is adapted."""
        config = super().get_config()
        del config["num_bins"], config["keep_sketch"]
        return {**config, "num_classes": self.num_classes}
