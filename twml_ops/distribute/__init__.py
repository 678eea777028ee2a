"""Training on several replicas, with tables in mind: sparse gradients, states that merge."""

from twml_ops.distribute.exchange import received_bytes
from twml_ops.distribute.sketches import merged_sketch
from twml_ops.distribute.strategy import mirrored

__all__ = ["merged_sketch", "mirrored", "received_bytes"]
