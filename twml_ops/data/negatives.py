"""Training on a random share of the negative examples."""

from __future__ import annotations

from twml_ops.data.block import Array, Block
from twml_ops.data.source import Source
from twml_ops.data.subset import Place, Subset, random_rows


def sample_negatives(source: Source, rate: float, seed: int = 0) -> Source:
    """Leaves out random negative examples. Nothing is copied: the result is a view.

    A model that is trained on the result predicts too high probabilities. The odds p / (1 - p) that
    it predicts, times `rate`, are the odds in the source. See section 6.3 of He et al., "Practical
    Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014.

    Args:
        source: labelled examples.
        rate: share of the negatives to keep, in (0, 1].
        seed: the seed of the random choice, which depends on nothing else.

    Returns:
        All positives and the negatives that were drawn, in the order of the source.

    Raises:
        ValueError: `rate` is out of range, or the source has several labels.
    """
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"rate must be greater than 0 and at most 1, got {rate}")
    labels = source.schema.labels
    if len(labels) > 1:
        raise ValueError(f"{source.name}: expected one label, got {', '.join(labels)}")
    drawn = random_rows(rate, seed)

    def keep(place: Place, block: Block) -> Array:
        return (block.labels > 0) | drawn(place, block)

    return Subset(source, f"{source.name} (a random {rate:.3g} of the negatives)", keep)
