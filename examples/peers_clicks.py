"""A neural network that predicts clicks, trained by ranks that average their weights.

    twml-ops launch --peers 4 -- python examples/peers_clicks.py --data criteo:dac_sample.txt

It is `clicks.py` with a few changed lines. Each rank trains on its share of the batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import distribute, models, optimizers, peers
from twml_ops.data import Source, open_source


def make_model(train: Source, args: argparse.Namespace) -> tf.keras.Model:
    """The compiled model.

    Args:
        train: examples on which the buckets of the numbers are adapted.
        args: the arguments of the command line.

    Returns:
        The model: a dictionary of features -> probabilities [B, 1].
    """
    tf.keras.utils.set_random_seed(args.seed)
    model = models.sparse_mlp(
        train.schema,
        train.dataset(args.batch_size),
        units=args.units,
        hidden=(args.units,),
        dropout=args.dropout,
        categorical_bits=args.bits,
    )
    model.compile(
        optimizers.Adagrad(args.rate),
        "binary_crossentropy",
        metrics=[tf.keras.metrics.AUC(name="auc")],
    )
    return model


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains on four fifths of the examples and prints the metrics of the others.

    Args:
        arguments: the arguments of the command line.

    Returns:
        The metrics.
    """
    parser = argparse.ArgumentParser(description="A neural network that predicts clicks.")
    parser.add_argument("--data", default="flights", help="such as criteo:PATH")
    parser.add_argument("--holdout", type=float, default=0.2, help="share of the examples")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    parser.add_argument("--units", type=int, default=32, help="of each layer")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument(
        "--bits", type=int, default=18, help="categories are hashed into 2^bits ids"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=16, help="batches between two exchanges")
    args = parser.parse_args(arguments)
    group = peers.PeerGroup(timeout=300)
    if args.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {args.epochs}")
    train, held_out = open_source(args.data).split(args.holdout)
    train.num_examples(), held_out.num_examples()  # so that the datasets know their lengths
    model = make_model(train, args)
    batches = train.dataset(args.batch_size, shuffle=True, seed=args.seed)
    options = {"epochs": args.epochs, "shuffle": False, "verbose": 0}
    while group.epoch < args.epochs:  # again after a rank was lost
        averaging = [distribute.PeerAveraging(group, args.every, regroup=True)]
        share = batches.shard(group.size, group.rank)
        model.fit(share, initial_epoch=group.epoch, callbacks=averaging, **options)
    metrics = model.evaluate(held_out.dataset(args.batch_size), return_dict=True, verbose=0)
    print(f"loss {metrics['loss']:.4f}  AUC {metrics['auc']:.4f}")
    return dict(metrics)


if __name__ == "__main__":
    main()
