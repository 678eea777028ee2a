"""Loads what `test_saving.py` has written, in a process of its own, and returns the outputs."""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tensorflow as tf

from tests.child_process import serve_requests
from tests.layers.model_cases import build, outputs
from twml_ops._keras import all_layers


def loaded(request):
    """The outputs of the model of a request: a form, a way to save and a path."""
    form, way, path = request
    if way == "keras":
        return outputs(tf.keras.models.load_model(path))
    if way == "saved_model":
        with tf.device("CPU:0"):
            return outputs(tf.saved_model.load(path))
    model = another(form)
    forget(model)
    if way == "weights":
        model.load_weights(path)
    else:
        tf.train.Checkpoint(model=model).restore(path)
    return outputs(model)


@functools.cache
def another(form):
    """A model with other weights and another state."""
    return build(form, seed=1)


def forget(model):
    """Sets all weights to 0, and removes the state that is not among them."""
    for variable in model.variables:
        variable.assign(tf.zeros_like(variable))
    for layer in all_layers(model):
        for variable in getattr(layer, "state_variables", ()):
            variable.assign(variable[:0])


if __name__ == "__main__":
    serve_requests(loaded)
