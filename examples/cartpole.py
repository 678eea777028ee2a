"""An ensemble of the snapshots of one training run outside clicks: a policy for CartPole.

    pip install gymnasium
    python examples/cartpole.py

The policy is a dense net that gives the probability of a push to the right. It is trained by the
cross-entropy method (Rubinstein and Kroese, "The Cross-Entropy Method", 2004): each epoch plays
episodes with random actions of the policy and fits the policy to the actions of the longest ones.
`research.SnapshotEnsemble` takes snapshots in one call of `fit`, as in a model of clicks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import gymnasium
import numpy as np
import tensorflow as tf

from twml_ops import research

ENVIRONMENT = "CartPole-v1"
OBSERVATIONS = 4
KEPT = 0.3  # share of the episodes to whose actions the policy is fitted
BATCH, STEPS = 64, 40  # of an epoch


def policy(units: int = 32) -> tf.keras.Model:
    """A net from observations [B, 4] to the probability [B, 1] of a push to the right."""
    observation = tf.keras.Input([OBSERVATIONS])
    hidden = tf.keras.layers.Dense(units, activation="tanh")(observation)
    right = tf.keras.layers.Dense(1, activation="sigmoid")(hidden)
    return tf.keras.Model(observation, right)


def play(
    model: tf.keras.Model, seeds: Sequence[int], rng: np.random.Generator | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Plays episodes at the same time, one for each seed of the initial state.

    Args:
        model: the policy.
        seeds: the seeds of the initial states.
        rng: draws the actions with the probabilities of the policy; None: the likelier action.

    Returns:
        The observations [length, 4] and the actions [length, 1] of each episode.
    """
    environments = [gymnasium.make(ENVIRONMENT) for _ in seeds]
    now = {i: e.reset(seed=seeds[i])[0] for i, e in enumerate(environments)}
    episodes: list[tuple[list, list]] = [([], []) for _ in seeds]
    while now:
        inputs = np.stack(list(now.values())).astype(np.float32)
        right = np.asarray(model(inputs, training=False))[:, 0]
        limits = np.full(len(right), 0.5) if rng is None else rng.random(len(right))
        for i, observation, action in zip(list(now), inputs, right > limits, strict=True):
            episodes[i][0].append(observation)
            episodes[i][1].append([float(action)])
            now[i], _, ended, stopped, _ = environments[i].step(int(action))
            if ended or stopped:
                del now[i]
    return [(np.array(x), np.array(y, np.float32)) for x, y in episodes]


def elite_batches(
    model: tf.keras.Model, episodes: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The batches of an epoch, from episodes that the model plays before the first one."""
    played = play(model, rng.integers(1 << 31, size=episodes).tolist(), rng)
    lengths = [len(y) for _, y in played]
    longest = np.argsort(lengths)[-max(1, round(KEPT * episodes)) :]
    x, y = (np.concatenate(parts) for parts in zip(*(played[i] for i in longest), strict=True))
    for _ in range(STEPS):
        rows = rng.integers(len(y), size=BATCH)
        yield x[rows], y[rows]


def train(
    epochs: int, episodes: int, seed: int, snapshots: research.SnapshotEnsemble | None = None
) -> tf.keras.Model:
    """A trained policy.

    Args:
        epochs: number of rounds of playing and fitting.
        episodes: the episodes of a round.
        seed: the seed of the weights, the initial states and the actions.
        snapshots: takes snapshots of the policy.
    """
    tf.keras.utils.set_random_seed(seed)
    model, rng = policy(), np.random.default_rng(seed)
    model.compile(tf.keras.optimizers.Adam(0.01), "binary_crossentropy")
    data = tf.data.Dataset.from_generator(
        lambda: elite_batches(model, episodes, rng),
        output_signature=(
            tf.TensorSpec([BATCH, OBSERVATIONS], tf.float32),
            tf.TensorSpec([BATCH, 1], tf.float32),
        ),
    ).apply(tf.data.experimental.assert_cardinality(STEPS))
    model.fit(data, epochs=epochs, verbose=0, callbacks=[snapshots] if snapshots else [])
    return model


def mean_length(model: tf.keras.Model, episodes: int) -> float:
    """The mean length of episodes, at most 500, in which the likelier action is taken."""
    played = play(model, range(10_000, 10_000 + episodes))
    return float(np.mean([len(y) for _, y in played]))


def run(
    epochs: int, episodes: int, evaluated: int, num_snapshots: int, perturbation: float, seed: int
) -> dict[str, float]:
    """Trains with and without snapshots.

    Args:
        epochs: the number of epochs of each training.
        episodes: the episodes of an epoch.
        evaluated: number of episodes of the evaluation.
        num_snapshots: the number of snapshots of the ensemble.
        perturbation: see `research.SnapshotEnsemble`.
        seed: of both trainings.

    Returns:
        The mean length of an episode by policy.
    """
    found = {"a single run": mean_length(train(epochs, episodes, seed), evaluated)}
    snapshots = research.SnapshotEnsemble(num_snapshots, "cyclic", perturbation)
    train(epochs, episodes, seed, snapshots)
    lengths = [mean_length(member, evaluated) for member in snapshots.members()]
    found["mean of the snapshots"] = float(np.mean(lengths))
    found["last snapshot"] = lengths[-1]
    found["ensemble of the snapshots"] = mean_length(snapshots.ensemble(), evaluated)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the mean length of an episode by seed and policy.

    Then the means over the seeds, and the difference to the single run with its standard error.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--episodes", type=int, default=16, help="of an epoch")
    parser.add_argument("--evaluated", type=int, default=20, help="episodes of the evaluation")
    parser.add_argument("--snapshots", type=int, default=4)
    parser.add_argument("--perturbation", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args(arguments)
    lengths: dict[str, list[float]] = {}
    for seed in range(given.seeds):
        found = run(
            given.epochs,
            given.episodes,
            given.evaluated,
            given.snapshots,
            given.perturbation,
            seed,
        )
        print(f"seed {seed}:", ", ".join(f"{name} {value:.1f}" for name, value in found.items()))
        for name, value in found.items():
            lengths.setdefault(name, []).append(value)
    for name, values in lengths.items():
        gains = np.subtract(values, lengths["a single run"])
        error = np.std(gains, ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
        print(f"{name}: {np.mean(values):.1f}, {np.mean(gains):+.1f} ± {error:.1f}")


if __name__ == "__main__":
    main()
