"""The ops in the form that XLA compiles: stock TensorFlow ops on batches of static shape."""
