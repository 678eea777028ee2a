"""A model's learned hash has the rows of the plan, and other models take its file."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.test_new_categories import KNOWN, NEW, SCHEMA, batches, made
from tests.pairwise import on_both
from twml_ops import models, research
from twml_ops.models.new_categories import with_new_categories

pytestmark = pytest.mark.usefixtures("fresh_keras")
NAMES = ["a", "b", "tags"]  # the fields, then the bags


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("hash") / "hash.npz"
    model = made(models.dlrm, min_count=1)
    learned = research.learn_hash(model, SCHEMA, batches(KNOWN), ratio=2, units=8)
    research.save_hash(learned, NAMES, path)
    return path


def test_each_field_has_the_rows_of_its_memory(file):
    learned = research.load_hash(file, NAMES, 1)
    for rows, known in zip(learned.num_rows, (KNOWN[name] for name in NAMES), strict=True):
        assert 1 < rows <= 1 + known // 2


@pytest.mark.parametrize(
    "build", on_both([models.dcn, models.deepfm, research.dhen, models.dlrm], models.dcn)
)
def test_models_take_the_hash_and_keep_it(build, file, tmp_path):
    model = made(build, learned_hash=str(file))
    learned = research.load_hash(file, NAMES, 1)
    rows = model.get_layer("categories").num_rows
    assert rows == learned.num_rows
    assert model.get_layer("embedding").num_rows == [*rows[:2], 21, rows[2]]
    enlarged = with_new_categories(model, SCHEMA, batches(NEW, seed=2))
    assert enlarged.new_rows == [0, 0, 0]
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras", compile=False)
    names = {t.name.split(":")[0] for t in model.inputs}
    for features, _ in batches(NEW, seed=3).take(1):
        used = {k: v for k, v in features.items() if k in names}
        np.testing.assert_allclose(loaded(used), model(used), rtol=1e-6)


def test_another_schema_is_refused(file, tmp_path):
    research.save_hash(research.load_hash(file, NAMES, 1), ["a", "c", "tags"], tmp_path / "h.npz")
    with pytest.raises(ValueError, match="is a hash of the fields a, c, tags"):
        made(models.dlrm, learned_hash=str(tmp_path / "h.npz"))


def test_models_without_such_layers_and_wrong_ratios_are_refused():
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"must have the layers categories \(CategoryRows\)"):
        research.learn_hash(model, SCHEMA, batches(KNOWN), ratio=2, units=8)
    with pytest.raises(ValueError, match="ratio must be at least 1, got 0.5"):
        research.learn_hash(model, SCHEMA, batches(KNOWN), ratio=0.5, units=8)
