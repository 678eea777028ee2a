"""The configuration of a training run, its JSON form, and values of annotated types.

It does not import TensorFlow.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    from twml_ops.data import ColumnUses

COLUMN_OPTIONS = (
    *("label", "positive_label", "time", "time_features", "weight", "group"),
    *("categorical", "numeric", "drop"),
)
"""The fields that say what columns are."""

DEFAULT_EPOCHS = 4
DEFAULT_BATCH_SIZE = 256
DEFAULT_TIME_LIMIT = 600.0
FORMAT_KEY, FORMAT = "twml_ops_run", 1  # of run.json
AUTO = "auto"  # the name of a model that is chosen by its loss on validation data
DEFAULT = "default"  # the name of the model that suits the features


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """How a cluster trains, by `twml_ops.distribute.HybridTrainer`.

    Attributes:
        mode: how workers synchronize their updates.
        partition_axis: axis along which tables are divided among the servers.
        plan: file with a plan of the tables, in place of `partition_axis`; None: none.
        wire_dtype: data type of products in messages.
        gradient_wire_dtype: data type of the gradients of products; None: `wire_dtype`.
        exchange_every: steps of a worker between two exchanges with the servers.
        micro_batches: micro-batches of a synchronous step, with which the weights do not depend on
            the number of workers; None: each worker has one batch.
        steps_per_execution: steps of a call of TensorFlow, rounded up to a multiple of
            `exchange_every`. More need less CPU time a step and more time before the first step.
        checkpoint_every: steps between two checkpoints.
        checkpoint_keep: how many checkpoints are kept.
        timeout: seconds after which a process that does not answer counts as lost.
    """

    mode: Literal["sync", "async", "hogwild"] = "async"
    partition_axis: Literal["row", "column", "auto"] = "auto"
    plan: str | None = None
    wire_dtype: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    gradient_wire_dtype: Literal["float32", "bfloat16", "float16", "int8"] | None = None
    exchange_every: int = 1
    micro_batches: int | None = None
    steps_per_execution: int = 4
    checkpoint_every: int = 1000
    checkpoint_keep: int = 2
    timeout: float = 300.0

    def batches_of_step(self, workers: int) -> int:
        """The number of batches of a synchronous step.

        Args:
            workers: number of workers.

        Returns:
            `micro_batches`, or one for each worker.
        """
        return self.micro_batches or workers

    def trainer_arguments(self) -> dict[str, Any]:
        """The options as the trainer takes them.

        Returns:
            Arguments of `HybridTrainer`.
        """
        every = max(1, self.exchange_every)  # the trainer refuses others
        together = -(-self.steps_per_execution // every) * every
        return {**dataclasses.asdict(self), "steps_per_execution": together}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What the user chose for a training run; see `twml-ops train --help`.

    Attributes:
        data: SOURCE of the training data.
        eval: SOURCE of the evaluation data; None: a part of `data` is held out.
        model: name of the model, FILE.py:FUNCTION of a function that builds one, "default": the
            one that suits the features, or "auto": the model and its options are chosen.
        optimizer: name of the optimizer.
        learning_rate: initial learning rate; None: the default of the optimizer and the model.
        batch_size: number of examples in a batch; None: as suits the model and the number of
            examples, see `twml_ops.training.model.with_batch_size`.
        epochs: number of passes over the training data; None: it is chosen by early stopping, or
            `DEFAULT_EPOCHS` where there is no validation.
        seed: seed of the initial weights, of dropout and of the order of the examples.
        validation: which part of `data` is the validation data, a method of
            `twml_ops.data.split_for_validation`; "none": there are none.
        validation_share: share of `data` that becomes validation data.
        patience: epochs in a row without a lower validation loss after which training stops.
        max_epochs: number of epochs after which training stops in any case.
        refit: whether a new model is trained on all of `data` for the chosen number of epochs.
        positive_weight: factor of the weights of positive examples in training.
        negative_rate: share of the negative examples that is used for training.
        ensemble: number of models that are trained with different seeds; the model of the run
            returns the mean of their probabilities.
        model_options: options of the model by name; the others have their defaults.
        schema_file: file with the uses of the columns of `data`; None: as they look like.
        label: names of the label columns; none: `label`. This and the following ones are for data
            without a `schema_file`; see `twml_ops.data.ColumnUses`.
        positive_label: the value of the label column for which the label is 1, and 0 for all
            others; None: the column has 0 and 1, bools, or yes and no.
        time: the column with the times of the examples; None: one that looks like it, if any.
        time_features: what is made of times: `hour`, `weekday`, `month` or `hour_of_week` of the
            column `time`, or of another one, as `COLUMN.hour`.
        weight: the column of sample weights, if any.
        group: the column that examples of one user or request share, if any.
        categorical: columns of categories.
        numeric: columns of numbers.
        drop: columns that are not used.
        from_run: folder of a finished run whose training goes on; None: a new model is trained.
        new_categories: whether categories of the new data that the run of `from_run` has no row for
            get one.
        save_slots: whether the run keeps the optimizer's slots for runs that start from it.
        storage: folder for the rows of large tables; None: all tables are in memory.
        cache_rows: with `storage`: rows of a table in memory. Tables with at most so many rows are
            in memory as a whole.
        checkpoint_policy: which rows of tables a checkpoint has, a policy of
            `twml_ops.checkpoint.TablePolicy`.
        checkpoint_bits: bits of a weight of a table in checkpoints; 32: as it is.
        checkpoint_slot_bits: the same for the optimizer's slots of tables.
        time_limit: seconds after which the search of the model "auto" starts no further trial;
            None: `DEFAULT_TIME_LIMIT`.
        cluster: how to train in a cluster; None: in this process alone.
    """

    data: str
    eval: str | None = None
    model: str = DEFAULT
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    seed: int = 0
    validation: str = "auto"
    validation_share: float = 0.1
    patience: int = 2
    max_epochs: int = 30
    refit: bool = True
    positive_weight: float = 1.0
    negative_rate: float = 1.0
    ensemble: int = 1
    model_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    schema_file: str | None = None
    label: list[str] = dataclasses.field(default_factory=list)
    positive_label: str | None = None
    time: str | None = None
    time_features: list[str] = dataclasses.field(default_factory=list)
    weight: str | None = None
    group: str | None = None
    categorical: list[str] = dataclasses.field(default_factory=list)
    numeric: list[str] = dataclasses.field(default_factory=list)
    drop: list[str] = dataclasses.field(default_factory=list)
    from_run: str | None = None
    new_categories: bool = True
    save_slots: bool = False
    storage: str | None = None
    cache_rows: int = 1_000_000
    checkpoint_policy: Literal["full", "one-shot", "consecutive", "intermittent"] = "full"
    checkpoint_bits: Literal[32, 8, 4, 3, 2] = 32
    checkpoint_slot_bits: Literal[32, 8, 4, 3, 2] = 32
    time_limit: float | None = None
    cluster: ClusterOptions | None = None

    @property
    def fixed_epochs(self) -> int:
        """The number of epochs of a run that has no validation data."""
        return DEFAULT_EPOCHS if self.epochs is None else self.epochs

    @property
    def fixed_batch_size(self) -> int:
        """The number of examples in a batch of a run that chooses none."""
        return DEFAULT_BATCH_SIZE if self.batch_size is None else self.batch_size

    @property
    def uses(self) -> ColumnUses:
        """What the user says of the columns."""
        from twml_ops.data import ColumnUses  # which imports TensorFlow

        return ColumnUses(
            labels=tuple(self.label),
            positive_label=self.positive_label,
            time=self.time,
            weight=self.weight,
            group=self.group,
            categorical=tuple(self.categorical),
            numeric=tuple(self.numeric),
            drop=tuple(self.drop),
            time_features=tuple(self.time_features),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as values that JSON can hold.

        Returns:
            Value by name of the field.
        """
        return dataclasses.asdict(self)

    def check_same(self, found: Mapping[str, Any], where: object) -> None:
        """Checks that a run with this configuration can go on with what another process has kept.

        Options of a cluster that change what is computed are compared with the checkpoints.

        Args:
            found: the fields of the configuration of that process, as JSON has them.
            where: the file or folder, for the message.

        Raises:
            UserError: a field differs.
        """
        for name, value in json.loads(json.dumps(self.to_json())).items():
            if name in ("cluster", "checkpoint_policy"):  # they may change only the speed
                continue
            if name not in found or found[name] != value:
                raise UserError(
                    f"{where}: was written by a training with {name} = {found.get(name)!r}, "
                    f"got {value!r}; use --overwrite to begin again"
                )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        """The configuration with the fields of `values`.

        Args:
            values: what `to_json` returned, or the content of a run.json, which holds other keys as
                well. Fields that are missing have their defaults.

        Returns:
            The configuration.

        Raises:
            UserError: a field is unknown, missing without a default, or of the wrong type.
        """
        cluster = values.get("cluster")
        fields = {k: v for k, v in values.items() if k != "cluster"}
        if FORMAT_KEY in fields:
            fields = {k: v for k, v in fields.items() if k in _field_types(cls)}
        config: RunConfig = _from_json(cls, fields, "")
        if cluster is None:
            return config
        if not isinstance(cluster, Mapping):
            raise UserError(f"cluster: expected an object or null, got {cluster!r}")
        return dataclasses.replace(config, cluster=_from_json(ClusterOptions, cluster, "cluster."))


def _field_types(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _from_json(cls: type[Any], values: Mapping[str, Any], prefix: str) -> Any:
    expected = _field_types(cls)
    for name, value in values.items():
        if name not in expected:
            raise UserError(f"{prefix}{name}: unknown field, expected one of {', '.join(expected)}")
        if not has_type(value, expected[name]):
            raise UserError(f"{prefix}{name}: expected {type_name(expected[name])}, got {value!r}")
    for field in dataclasses.fields(cls):
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and field.name not in values:
            raise UserError(
                f"{prefix}{field.name}: missing, expected {type_name(expected[field.name])}"
            )
    return cls(**values)


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """When a run in one process writes checkpoints, and whether it continues from one.

    Attributes:
        steps: between two checkpoints; None: it does not depend on the steps.
        seconds: between two checkpoints; None: it does not depend on the time.
        keep: how many are kept.
        resume: whether to continue from the last one.
        publish: folder in which each checkpoint becomes a version of a scorer; None: there is none.
    """

    steps: int | None = None
    seconds: float | None = 600.0
    keep: int = 2
    resume: bool = False
    publish: Path | None = None


NO_CHECKPOINTS = CheckpointOptions(seconds=None)

_NAMES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    types.NoneType: "null",
}

_PLURALS: dict[Any, str] = {str: "strings", int: "integers", float: "numbers"}


def type_name(expected: Any) -> str:
    """A type in words."""
    if typing.get_origin(expected) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(expected)))}"
    if _is_union(expected):
        return " or ".join(map(type_name, typing.get_args(expected)))
    if _is_sequence(expected):
        return f"{_PLURALS.get(_item(expected), 'values')} separated by commas"
    if _is_mapping(expected):
        return "an object"
    return _NAMES.get(expected, getattr(expected, "__name__", str(expected)))


def has_type(value: Any, expected: Any) -> bool:
    """Whether a JSON value is of a type; an integer counts as a float, a list as any sequence."""
    if expected is Any:
        return True
    if typing.get_origin(expected) is Literal:
        return value in typing.get_args(expected)
    if _is_union(expected):
        return any(has_type(value, option) for option in typing.get_args(expected))
    if _is_sequence(expected):
        return isinstance(value, (list, tuple)) and all(has_type(v, _item(expected)) for v in value)
    if _is_mapping(expected):
        return isinstance(value, collections.abc.Mapping)
    if isinstance(value, bool):
        return expected is bool
    if expected is float:
        return isinstance(value, (int, float))
    return isinstance(value, expected) if isinstance(expected, type) else True


def parse_value(text: str, expected: Any) -> Any:
    """The value that a text stands for; sequences become lists, as in JSON.

    Raises:
        ValueError: the text is not of the type.
    """
    wrong = ValueError(f"expected {type_name(expected)}, got {text!r}")
    if _is_union(expected):
        options = typing.get_args(expected)
        # Null before sequences of strings, which any text is; strings last.
        for option in sorted(options, key=lambda t: (t is str, t is not types.NoneType)):
            try:
                return parse_value(text, option)
            except ValueError:
                continue
        raise wrong
    if typing.get_origin(expected) is Literal:
        for value in typing.get_args(expected):
            if text == str(value):
                return value
        raise wrong
    if _is_sequence(expected):
        items = (item.strip() for item in text.split(","))
        try:
            return [parse_value(item, _item(expected)) for item in items if item]
        except ValueError:
            raise wrong from None
    if expected is types.NoneType:
        if text.lower() not in ("null", "none"):
            raise wrong
        return None
    if expected is bool:
        if text.lower() not in ("true", "false"):
            raise wrong
        return text.lower() == "true"
    if expected in (int, float):
        try:
            return expected(text)
        except ValueError:
            raise wrong from None
    return text


def format_value(value: Any) -> str:
    """A value as text that `parse_value` reads."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(format_value, value))
    return str(value)


def _is_union(expected: Any) -> bool:
    return typing.get_origin(expected) in (types.UnionType, typing.Union)


def _is_sequence(expected: Any) -> bool:
    origin = typing.get_origin(expected) or expected
    return origin in (list, tuple, collections.abc.Sequence)


def _is_mapping(expected: Any) -> bool:
    return (typing.get_origin(expected) or expected) in (dict, collections.abc.Mapping)


def _item(expected: Any) -> Any:
    """The type of the items of a sequence."""
    return (*typing.get_args(expected), str)[0]


PEER_OPTIONS = "TWML_OPS_PEERS"
"""The environment variable with the options of a rank of a job."""


def is_rank() -> bool:
    """Whether this process is a rank of a job."""
    return PEER_OPTIONS in os.environ


def cluster_role() -> str:
    """The role of this process in the cluster that `TF_CONFIG` describes.

    Returns:
        "ps", "chief", "worker" or "evaluator"; "alone" if there are no parameter servers.

    Raises:
        UserError: `TF_CONFIG` is malformed.
    """
    if not os.environ.get("TF_CONFIG", "").strip():
        return "alone"
    from twml_ops.distribute import Cluster

    try:
        cluster = Cluster.from_environment()
    except ValueError as e:
        raise UserError(str(e)) from e
    if cluster.job in ("ps", "evaluator"):
        return cluster.job
    if not cluster.servers:
        return "alone"
    return "chief" if cluster.is_chief else "worker"
