"""Trains all networks of a space at once, and chooses one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.optimizers import LazyAdam
from twml_ops.research.architecture_search.costs import COSTS
from twml_ops.research.architecture_search.space import SearchSpace
from twml_ops.research.architecture_search.supernet import Supernet


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the training in a search.

    Attributes:
        costs: What is added to the loss: for each of flops, bytes and latency the factor of the
            expected cost, divided by that of the largest network.
        warm_up: Passes over the data in which only the network's weights are trained.
        epochs: Passes after these in which logits are trained as well.
        every: Steps of the weights between two steps of the logits.
        learning_rate: Of the weights, with LazyAdam.
        logit_learning_rate: Of the logits of the candidates, with Adam.
        temperature: First and last temperature τ; between these it decreases exponentially with
            the steps of the logits.
        samples: Networks that are drawn from the final probabilities and compared, beside the most
            probable one.
        seed: Of the weights and the draws.

    Raises:
        ValueError: A value is out of range.
    """

    costs: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"flops": 0.01})
    warm_up: int = 1
    epochs: int = 3
    every: int = 4
    learning_rate: float = 0.002
    logit_learning_rate: float = 0.05
    temperature: tuple[float, float] = (2.0, 0.2)
    samples: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = sorted({*self.costs} - {*COSTS})
        if unknown:
            raise ValueError(f"costs must be some of {', '.join(COSTS)}, got {unknown[0]!r}")
        for kind, factor in self.costs.items():
            if not 0 <= factor < float("inf"):
                raise ValueError(f"costs[{kind!r}] must be finite and not negative, got {factor}")
        for name, lowest in (("warm_up", 0), ("epochs", 1), ("every", 1), ("samples", 0)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {getattr(self, name)}")
        for name in ("learning_rate", "logit_learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)}")
        first, last = self.temperature
        if not 0 < last <= first < float("inf"):
            raise ValueError(
                f"temperature must be positive and not increase, got {self.temperature}"
            )


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The state of a search after a pass.

    Attributes:
        number: From 1.
        loss: Mean log loss of the steps of the weights.
        validation_loss: The same of the steps of the logits, without costs; NaN in the warm-up.
        searching: Whether it is not of the warm-up.
        temperature: τ.
        costs: Expected costs, divided by the costs of the largest network.
    """

    number: int
    loss: float
    validation_loss: float
    searching: bool
    temperature: float
    costs: dict[str, float]


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        architecture: The candidate of each choice.
        probabilities: Of all candidates of each choice, [K] or [fields, K].
        costs: Of the architecture: flops, bytes, and latency if it was searched.
        largest: The same of the largest network.
        epochs: The states after each pass.
        examples: Examples on which weights or logits were trained.
    """

    architecture: dict[str, Any]
    probabilities: dict[str, npt.NDArray[Any]]
    costs: dict[str, float]
    largest: dict[str, float]
    epochs: tuple[Epoch, ...]
    examples: int


def search(
    space: SearchSpace,
    schema: Schema,
    batches: tf.data.Dataset,
    held_out: tf.data.Dataset,
    settings: Settings | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> SearchResult:
    """Searches a network with a low log loss and low costs.

    With the log loss L, network weights ω and logits α of the candidates, steps on `batches` reduce
    L(ω, α) by ω and steps on `held_out` reduce L(ω, α) + Σ factor · cost(α) / cost(largest) by α,
    alternating (the first-order approximation of DARTS, Liu et al. 2019). L is computed with one
    sample of the Gumbel-softmax distribution (`Gate`), costs with the probabilities (`Costs`), as
    FBNet (Wu et al. 2019) and Krishna et al. 2021 do for image models and for DLRM. At the end some
    architectures are drawn and compared by the same sum on `held_out`, with the shared weights.

    Both data sets are parts of the training data. What is found has to be trained from the start,
    with `SearchSpace.model`, or with `research.dhen` and `SearchSpace.options`.

    Args:
        space: The networks.
        schema: The features and labels.
        batches: Batches in the layout "fields", on which the weights are trained.
        held_out: Others, on which the logits are trained. Both are iterated repeatedly.
        settings: How; None: the defaults.
        on_epoch: Called after each pass.

    Returns:
        The result.

    Raises:
        ValueError: A data set is empty, the loss is not finite, or the search is in the scope of a
            strategy, since it trains on one replica.
    """
    if tf.distribute.has_strategy():
        raise ValueError(
            "a search trains on one replica: call it outside of strategy.scope(), and train what "
            "it finds there"
        )
    settings = settings or Settings()
    tf.keras.utils.set_random_seed(settings.seed)
    run = _Run(space, schema, batches, held_out, settings)
    epochs = []
    for number in range(1, settings.warm_up + settings.epochs + 1):
        epochs.append(run.epoch(number))
        on_epoch(epochs[-1])
    architecture = run.choose()
    net = run.supernet
    kinds = dict.fromkeys(["flops", "bytes", *settings.costs])
    return SearchResult(
        architecture,
        net.probabilities(),
        {kind: net.cost(kind, architecture) for kind in kinds},
        {kind: net.cost(kind, run.largest) for kind in kinds},
        tuple(epochs),
        run.examples,
    )


class _Run:
    """A search while it runs."""

    def __init__(
        self,
        space: SearchSpace,
        schema: Schema,
        batches: tf.data.Dataset,
        held_out: tf.data.Dataset,
        settings: Settings,
    ) -> None:
        self._space, self._settings = space, settings
        self._batches, self._held_out = batches, held_out
        self.supernet = net = Supernet(space, schema, batches)
        self.largest = space.largest(schema)
        self._scales = {k: f / net.cost(k, self.largest) for k, f in settings.costs.items()}
        steps = _steps("batches", batches)
        _steps("held_out", held_out)
        self._logit_steps = settings.epochs * -(-steps // settings.every)
        self._step, self.examples = 0, 0
        self._held: Iterator[Any] = itertools.chain.from_iterable(itertools.repeat(held_out))
        weights, logits = net.network_variables, net.logits
        self._update_weights = _step_function(self._loss, LazyAdam(settings.learning_rate), weights)
        adam = tf.keras.optimizers.Adam(settings.logit_learning_rate, beta_1=0.5)
        self._update_logits = _step_function(self._loss, adam, logits, self._penalty)

    def _loss(self, features: Any, labels: Any, weights: Any, training: bool) -> tf.Tensor:
        return log_loss(self.supernet.model(features, training=training), labels, weights)

    def _penalty(self) -> tf.Tensor:
        probabilities = {n: gate.probabilities() for n, gate in self.supernet.gates.items()}
        return tf.add_n(
            [tf.zeros([])]
            + [s * self.supernet.costs.of(k, probabilities) for k, s in self._scales.items()]
        )

    def epoch(self, number: int) -> Epoch:
        """One pass over the data."""
        searching = number > self._settings.warm_up
        losses, held_losses = [], []
        for step, batch in enumerate(self._batches):
            losses.append(self._train(self._update_weights, batch))
            if searching and step % self._settings.every == 0:
                self._cool()
                held_losses.append(self._train(self._update_logits, next(self._held)))
        loss = float(np.mean(losses))
        if not np.isfinite([loss, *held_losses]).all():
            raise ValueError(
                f"the loss must be finite, got {loss} in pass {number}: use a smaller learning_rate"
            )
        probabilities = self.supernet.probabilities()
        costs = {
            kind: float(self.supernet.costs.of(kind, probabilities))
            / self.supernet.cost(kind, self.largest)
            for kind in self._settings.costs
        }
        held = float(np.mean(held_losses)) if held_losses else float("nan")
        return Epoch(number, loss, held, searching, self._temperature, costs)

    def _train(self, update: Callable[..., Any], batch: Any) -> float:
        features, labels, *weights = batch
        self.examples += int(tf.shape(tf.nest.flatten(labels)[0])[0])
        return float(update(features, labels, weights[0] if weights else None))

    @property
    def _temperature(self) -> float:
        first, last = self._settings.temperature
        share = self._step / max(self._logit_steps - 1, 1)
        return float(first * (last / first) ** min(share, 1.0))

    def _cool(self) -> None:
        for gate in self.supernet.gates.values():
            gate.temperature.assign(self._temperature)
        self._step += 1

    def choose(self) -> dict[str, Any]:
        """The best of the most probable architecture and of some that are drawn."""
        probabilities = self.supernet.probabilities()
        rng = np.random.default_rng(self._settings.seed)
        tried = [self._space.most_probable(probabilities)]
        for _ in range(self._settings.samples):
            drawn = self._space.draw(probabilities, rng)
            if drawn not in tried:
                tried.append(drawn)

        def loss(features: Any, labels: Any, weights: Any) -> tf.Tensor:
            return self._loss(features, labels, weights, training=False)

        judge = tf.function(loss, autograph=False, reduce_retracing=True)
        return min(tried, key=lambda architecture: self._judged(judge, architecture))

    def _judged(self, judge: Callable[..., Any], architecture: dict[str, Any]) -> float:
        self.supernet.fix(architecture)
        total, examples = 0.0, 0
        for features, labels, *weights in self._held_out:
            rows = int(tf.shape(tf.nest.flatten(labels)[0])[0])
            loss = judge(features, labels, weights[0] if weights else None)
            total, examples = total + float(loss) * rows, examples + rows
        costs = (s * self.supernet.cost(k, architecture) for k, s in self._scales.items())
        return total / examples + sum(costs)


def log_loss(outputs: Any, labels: Any, weights: Any) -> tf.Tensor:
    """The mean log loss of a batch, summed over labels.

    Args:
        outputs: Probabilities [B, 1], or a dict of them.
        labels: Of the same form.
        weights: Of the examples, [B]; None: equal.

    Returns:
        A scalar.
    """
    losses = []
    for p, y in zip(tf.nest.flatten(outputs), tf.nest.flatten(labels), strict=True):
        y = tf.reshape(tf.cast(y, p.dtype), tf.shape(p))
        each = tf.keras.losses.binary_crossentropy(y, p)
        scale = 1.0 if weights is None else tf.reshape(tf.cast(weights, p.dtype), [-1])
        losses.append(tf.reduce_mean(each * scale))
    return tf.add_n(losses)


def _step_function(
    loss: Callable[..., Any],
    optimizer: Any,
    variables: list[Any],
    penalty: Callable[[], Any] = lambda: 0.0,
) -> Callable[..., Any]:
    """A step of an optimizer that reduces loss and penalty, and returns the loss."""
    optimizer.build(variables)

    def step(features: Any, labels: Any, weights: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(features, labels, weights, training=True)
            total = value + penalty()
        gradients = tape.gradient(total, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return value

    made: Callable[..., Any] = tf.function(step, autograph=False, reduce_retracing=True)
    return made


def _steps(argument: str, batches: tf.data.Dataset) -> int:
    """The number of batches, at least one."""
    count = int(batches.cardinality())
    if count < 0:
        count = sum(1 for _ in batches)
    if not count:
        raise ValueError(f"{argument} must have at least one batch, got none")
    return count
