"""What a training run records while it fits a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple


class LossPoint(NamedTuple):
    """One point of a learning curve.

    Attributes:
        examples: number of examples trained on since the start of the run.
        loss: mean log loss.
    """

    examples: int
    loss: float


class Epoch(NamedTuple):
    """The record of one epoch.

    Attributes:
        examples: number of examples trained on in this epoch.
        seconds: training time of this epoch, evaluation excluded.
        metrics: value of each metric by its Keras name: `loss` and `auc` on the training data,
            `val_loss` and `val_auc` on the monitored data, if there are any.
    """

    examples: int
    seconds: float
    metrics: dict[str, float]


class SpeedComparison(NamedTuple):
    """The speed of a cluster and of one process, in examples per second.

    Attributes:
        cluster: of all workers together.
        one_process: of one process on the host of the chief.
    """

    cluster: float
    one_process: float

    def warning(self) -> str | None:
        """A sentence that says that the cluster is slower; None if it is not."""
        if self.cluster >= self.one_process:
            return None
        return (
            f"This cluster is slower than one process: it trains {self.cluster:,.0f} examples/s, "
            f"and one process on the host of the chief trains {self.one_process:,.0f}. "
            "`twml-ops plan --measure` predicts how many hosts a cluster needs to be faster."
        )


@dataclasses.dataclass
class History:
    """The record of a training run.

    Attributes:
        epochs: one record per epoch. A cluster counts steps, not epochs, and leaves it empty.
        monitored: "validation" if choices are made on the monitored data, otherwise "evaluation".
        train_loss: learning curve on the training data. Each point is the mean since the previous
            one.
        monitored_loss: learning curve on the monitored data, one point per evaluation.
        examples: number of examples trained on.
        seconds: training time, evaluation excluded.
        parsed_bytes: bytes of the data of `--data` that this process of a cluster has parsed; 0 of
            other trainings.
        data_bytes: bytes of all training data; 0 of other trainings.
        speeds: the speed of a cluster and of one process; None if they were not compared.
    """

    epochs: list[Epoch] = dataclasses.field(default_factory=list)
    monitored: str = "evaluation"
    train_loss: list[LossPoint] = dataclasses.field(default_factory=list)
    monitored_loss: list[LossPoint] = dataclasses.field(default_factory=list)
    examples: int = 0
    seconds: float = 0.0
    parsed_bytes: int = 0
    data_bytes: int = 0
    speeds: SpeedComparison | None = None

    def to_json(self) -> dict[str, Any]:
        """The attributes as values that JSON can hold."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: [list(x) for x in v] if isinstance(v, list) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> History:
        """What `to_json` returned."""
        kinds: dict[str, Any] = {
            "epochs": Epoch,
            "train_loss": LossPoint,
            "monitored_loss": LossPoint,
        }
        lists = {name: [kind(*x) for x in values[name]] for name, kind in kinds.items()}
        speeds = values.get("speeds")
        return cls(
            **{**values, **lists, "speeds": None if speeds is None else SpeedComparison(*speeds)}
        )
