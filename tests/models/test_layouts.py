"""The layout of the batches that a builder or a model takes."""

import pytest
import tensorflow as tf

from twml_ops import models


def build(schema, dataset):
    raise NotImplementedError


def with_inputs(*names):
    inputs = {name: tf.keras.Input([2], name=name) for name in names}
    terms = list(inputs.values())
    joined = tf.keras.layers.Concatenate()(terms) if len(terms) > 1 else terms[0]
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(joined))


def test_a_builder_takes_ragged_batches_unless_it_declares_a_layout():
    assert models.layout_of(build) == "ragged"
    assert models.layout_of(models.takes("fields")(build)) == "fields"


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (["continuous", "continuous_present"], "fields"),
        (["categorical"], "fields"),
        (["categorical", "row_keys"], "keyed_fields"),
        (["bag_tags_ids", "sparse_ids"], "fields"),
        (["continuous_ids", "continuous_values", "categorical_ids"], "ragged"),
        (["sparse_ids"], "ragged"),
    ],
)
def test_the_inputs_of_a_model_tell_its_layout_also_from_a_file(names, layout, tmp_path):
    model = with_inputs(*names)
    path = str(tmp_path / "m.keras")
    model.save(path)
    assert models.layout_of(model) == layout
    assert models.layout_of(tf.keras.models.load_model(path)) == layout
