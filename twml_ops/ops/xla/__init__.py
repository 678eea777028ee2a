"""The ops as XLA compiles them: made of stock TensorFlow ops, on batches of static shape."""
