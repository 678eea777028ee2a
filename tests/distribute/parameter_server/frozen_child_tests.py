"""Tests of frozen layers with tables on servers, run by test_one_process.py in a child process."""

import tempfile
from functools import partial

import tensorflow as tf

from tests.distribute.parameter_server.model import (
    ROWS,
    batches,
    dynamic_model,
    id_batches,
    same,
    towers_model,
)
from tests.distribute.parameter_server.trainers import (
    TWO_WORKERS,
    child_test,
    export_with_slots,
    field_batches,
    field_model,
    train_alone,
    trainer,
)
from twml_ops import layers, optimizers
from twml_ops.distribute.parameter_server import SavedSlots
from twml_ops.placement import Tiered

_decaying = partial(optimizers.LazyAdam, 0.01, weight_decay=0.1)


def two_tables(frozen="frozen", **options):
    """Two tables, of which one is frozen, also as a layer of a frozen model."""
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    batch = layers.MaxNorm(ROWS)(inputs)
    tables = [
        layers.SparseLinear(8, ROWS, activation="relu", use_bias=False, name=name, **options)
        for name in ("frozen", "trained")
    ]
    hidden = tf.keras.layers.Concatenate()([table(batch) for table in tables])
    hidden = tf.keras.Model(inputs, hidden, name="inner")
    outputs = tf.keras.layers.Dense(1, activation="sigmoid")(hidden(inputs))
    model = tf.keras.Model(inputs, outputs)
    if frozen == "inner":
        hidden.trainable = False
    else:
        hidden.get_layer(frozen).trainable = False
    return model


def _frozen(build, name, *path):
    model = build()
    layer = model.get_layer(name)
    for attribute in path:
        layer = getattr(layer, attribute)
    layer.trainable = False
    return model


@child_test
def frozen_tables_on_servers_keep_their_values_as_in_a_single_process():
    for frozen, options in (
        ("inner", {"partition_axis": "column"}),
        ("trained", {"steps_per_execution": 2}),
    ):
        build = partial(two_tables, frozen)
        hybrid = trainer(_decaying(), 2, build, **options)
        hybrid.fit(batches, 6)
        same(train_alone(_decaying(), build, 6), hybrid.export().get_weights(), 2e-5)


@child_test
def frozen_fields_towers_and_rows_of_ids_are_the_ones_of_a_single_process():
    fields = partial(_frozen, partial(field_model, units=4), "fields")
    ids = partial(_frozen, dynamic_model, "ids")
    for build, data in (
        (fields, field_batches()),
        (ids, id_batches()),
        (partial(_frozen, partial(towers_model, 0.0), "tower_0", "embedding"), None),
    ):
        hybrid = trainer(optimizers.Adagrad(0.1), 2, build)
        hybrid.fit(batches if data is None else lambda _, data=data: data, 6)
        want = train_alone(optimizers.Adagrad(0.1), build, 6, batches=data)
        pairs = zip(want, hybrid.export().get_weights(), strict=True)
        # A lookup notes updates, of which a frozen table has none, in other numbers.
        same(*zip(*(pair for pair in pairs if pair[0].dtype == "float32"), strict=True), 2e-5)


@child_test
def frozen_tables_have_no_slots_in_checkpoints_and_in_runs_that_go_on():
    with tempfile.TemporaryDirectory() as folder:
        storage = Tiered(folder + "/rows", cache_rows=120)
        want = train_alone(_decaying(), two_tables, 6)
        for files in ({}, {"storage": storage}):
            options = {"checkpoint_dir": f"{folder}/{bool(files)}", **files}
            for steps in (3, 6):
                hybrid = trainer(_decaying(), 2, two_tables, **options)
                hybrid.fit(batches, steps)
                assert [len(t.slots[0]) for t in hybrid.placement.tables] == [0, 2]
            same(want, hybrid.export().get_weights(), 2e-5)
        saved, slots = export_with_slots(hybrid, _decaying())
        begun = trainer(_decaying(), 2, two_tables, saved_slots=SavedSlots(6, lambda: saved))
        begun.fit(batches, 0)
        same(slots, export_with_slots(begun, _decaying())[1])


@child_test
def frozen_tables_keep_their_values_with_several_workers():
    initial = two_tables().get_layer("inner").get_layer("frozen").get_weights()
    hybrid = trainer(_decaying(), 2, two_tables, cluster=TWO_WORKERS, mode="hogwild")
    hybrid.fit(batches, 6)
    same(initial, hybrid.export().get_layer("inner").get_layer("frozen").get_weights())
