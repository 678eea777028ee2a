"""A linear support vector machine, trained by ranks that average their weights.

    twml-ops launch --peers 4 -- python examples/peers_svm.py --data libsvm:rcv1_train.svm

It is `svm.py` with a few changed lines. Each rank trains on its share of each epoch's examples. If
a rank dies, the others take over its share, and a new one takes its place after the epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from twml_ops import peers
from twml_ops.data import Source, open_source
from twml_ops.data.block import Rows


def read(source: Source) -> tuple[Rows, np.ndarray]:
    """The examples of a source.

    Args:
        source: its features are sparse ids and values.

    Returns:
        (rows of ids and values, labels -1 or 1).
    """
    if not source.schema.sparse_dim:
        raise ValueError(f"{source.name}: expected sparse features, got {source.schema}")
    blocks = list(source.blocks())
    labels = np.concatenate([block.labels for block in blocks])
    rows = Rows.concat([block.groups["sparse"] for block in blocks])
    return rows, np.where(labels > 0.5, 1, -1)


def evaluate(
    weights: np.ndarray, rows: Rows, labels: np.ndarray, penalty: float
) -> dict[str, float]:
    """The metrics of examples.

    Args:
        weights: float32 [D].
        rows: the rows of the examples.
        labels: -1 or 1.
        penalty: factor of the squared norm.

    Returns:
        The loss, the share of the examples on the right side, and that of the larger class.
    """
    products = weights[rows.ids] * rows.values
    sums = np.concatenate([[0.0], np.cumsum(products, dtype=np.float64)])
    margins = labels * (sums[rows.row_splits[1:]] - sums[rows.row_splits[:-1]])
    hinge = np.maximum(0, 1 - margins).mean()
    return {
        "loss": float(hinge + penalty / 2 * np.square(weights).sum()),
        "accuracy": float((margins > 0).mean()),
        "guess": float(max((labels > 0).mean(), (labels < 0).mean())),
    }


def step(
    weights: np.ndarray,
    ids: np.ndarray,
    values: np.ndarray,
    label: int,
    rate: float,
    penalty: float,
) -> None:
    """Changes the weights by the subgradient of the loss of one example.

    Args:
        weights: float32 [D], changed in place.
        ids: the ids of the features of the example, each once.
        values: of these features.
        label: -1 or 1.
        rate: learning rate.
        penalty: factor of the squared norm.
    """
    margin = label * (weights[ids] @ values)
    weights *= np.float32(1 - rate * penalty)
    if margin < 1:
        weights[ids] += np.float32(rate * label) * values


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, and prints the metrics of the held-out examples after each epoch.

    Args:
        arguments: the arguments of the command line.

    Returns:
        The last metrics.
    """
    parser = argparse.ArgumentParser(description="A linear support vector machine.")
    parser.add_argument("--data", required=True, help="such as libsvm:PATH")
    parser.add_argument("--holdout", type=float, default=0.2, help="share of the examples")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    parser.add_argument("--decay", type=float, default=0.1, help="of the rate in each epoch")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the examples")
    parser.add_argument("--penalty", type=float, default=1e-4, help="of the squared norm")
    parser.add_argument("--every", type=int, default=1000, help="examples between two exchanges")
    args = parser.parse_args(arguments)
    group = peers.PeerGroup(timeout=300)
    if args.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {args.epochs}")
    if not 0 <= args.rate * args.penalty < 1:
        parser.error("--rate times --penalty must be less than 1")
    train, held_out = open_source(args.data).split(args.holdout)
    (rows, labels), test = read(train), read(held_out)
    dim = train.schema.sparse_dim
    shared = peers.SharedVector.create([dim], group=group)
    weights = shared.value
    for epoch in range(group.epoch, args.epochs):
        rate = args.rate / (1 + args.decay * epoch)
        order = np.random.default_rng([args.seed, epoch]).permutation(len(labels))
        for n, i in enumerate(group.deal(order)):
            entries = slice(rows.row_splits[i], rows.row_splits[i + 1])
            ids, values = rows.ids[entries], rows.values[entries]
            step(weights, ids, values, int(labels[i]), rate, args.penalty)
            if n % args.every == args.every - 1:
                shared.exchange()
        metrics = evaluate(weights, *test, args.penalty)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        print(f"epoch {epoch + 1}  {shown}")
        group.end_epoch(epoch + 1, args.epochs)
    return metrics


if __name__ == "__main__":
    main()
