"""Tables whose rows are in a file: results are bit for bit the same as with tables in memory."""

import itertools
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both, pairwise
from twml_ops import export, layers, ops, optimizers
from twml_ops._keras import KERAS_3
from twml_ops.layers import Tiered
from twml_ops.ops._tape import tf_variable
from twml_ops.placement import REPLICATED, LargeTables, Placement, placement_of, placement_scope
from twml_ops.placement.tiered import tiered_placement_of

N, UNITS, BATCH, ROW = 600, 5, 16, 6
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.Momentum(0.1),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "rowwise_adagrad": lambda: optimizers.RowWiseAdagrad(0.1),
    "lazy_adam": lambda: optimizers.LazyAdam(0.01),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "clipped": lambda: optimizers.Adagrad(0.1, global_clipnorm=0.3, weight_decay=0.01),
}


def storage(path, **options):
    return Tiered(path, **{"cache_rows": 112, "prefetch_rows": 24, **options})


def batches(number, seed=0, n=N):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        ids = (n * rng.random((BATCH, ROW)) ** 2).astype(np.int64)
        values = rng.normal(size=ids.shape).astype(np.float32)
        ids[rng.random(ids.shape) < 0.2] = -1
        label = rng.normal(size=(BATCH, 1)).astype(np.float32)
        yield (tf.constant(ids), tf.constant(values)), tf.constant(label)


def linear(path=None, cache_rows=112, **options):
    tier = None if path is None else storage(path, cache_rows=cache_rows)
    initializer = tf.keras.initializers.RandomNormal(seed=3)
    return layers.SparseLinear(
        UNITS, N, kernel_initializer=initializer, storage=tier, name="linear", **options
    )


def model_of(layer, optimizer, **compile_options):
    inputs = [tf.keras.Input([ROW], dtype="int64"), tf.keras.Input([ROW])]
    dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
    model = tf.keras.Model(inputs, dense(layer(inputs)))
    model.compile(optimizer, "mse", **compile_options)
    return model


def whole(table):
    return np.asarray(tf.cast(placement_of(table).read(table), tf.float32))


def slots(optimizer, table):
    """The slots as whole arrays."""
    place = tiered_placement_of(table)
    if place is None:
        return [slot.numpy() for slot in optimizer.slots_of(table)]
    rows = place.rows(table)
    return [rows.read(0, rows.num_rows, i).numpy() for i in range(1, len(rows.variables))]


def dataset(found):
    x, y = zip(*found, strict=True)
    ids, values = zip(*x, strict=True)
    parts = tuple(tf.data.Dataset.from_tensor_slices(tf.stack(p)) for p in (ids, values))
    return tf.data.Dataset.zip((parts, tf.data.Dataset.from_tensor_slices(tf.stack(y))))


@pairwise(name=OPTIMIZERS, kernel_dtype=["float32", "bfloat16"])
@pytest.mark.one_tf
def test_training_equals_that_of_a_table_in_memory(tmp_path, name, kernel_dtype):
    found = list(batches(20))
    made = []
    for path in (None, tmp_path):
        layer = linear(path, kernel_dtype=kernel_dtype)
        model = model_of(layer, OPTIMIZERS[name]())
        losses = [float(model.train_on_batch(x, y)) for x, y in found]
        predicted = model.predict_on_batch(found[0][0])
        made.append((losses, predicted, whole(layer.kernel), *slots(model.optimizer, layer.kernel)))
    for expected, got in zip(*made, strict=True):
        np.testing.assert_array_equal(got, expected)
    statistics = tiered_placement_of(layer.kernel).statistics(layer.kernel)
    assert statistics.misses > 100
    assert statistics.written_back > 100


@pytest.mark.parametrize(
    "options", on_both([{}, {"run_eagerly": True}, {"steps_per_execution": 3}], {})
)
def test_fit_with_announced_batches_equals_fit_in_memory(tmp_path, options):
    found = list(batches(12))
    made = []
    for path in (None, tmp_path):
        layer = linear(path)
        model = model_of(layer, optimizers.Adagrad(0.1), **options)
        data = dataset(found)
        if path is not None:
            data = layers.prefetch_rows(data, model, ahead=2)
        history = model.fit(data, epochs=2, verbose=0, validation_data=dataset(found[:2]))
        made.append((history.history["val_loss"], whole(layer.kernel)))
    for expected, got in zip(*made, strict=True):
        np.testing.assert_array_equal(got, expected)
    statistics = tiered_placement_of(layer.kernel).statistics(layer.kernel)
    assert statistics.prefetched > 0


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_gradients_are_those_of_the_whole_table(tmp_path, wrap):
    layer, plain = linear(tmp_path), linear()
    (ids, values), _ = next(batches(1))
    for each in (layer, plain):
        each.build(None)

    def gradients(each, values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = tf.reduce_sum(each((ids, values)) ** 2)
        by_kernel, by_values = tape.gradient(y, [tf_variable(each.kernel), values])
        return by_kernel.indices, by_kernel.values, by_kernel.dense_shape, by_values

    for got, expected in zip(
        *(wrap(lambda v, e=each: gradients(e, v))(values) for each in (layer, plain)), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_evaluation_writes_nothing_back(tmp_path):
    layer = linear(tmp_path)
    for x, _ in batches(10):
        layer(x)
    statistics = tiered_placement_of(layer.kernel).statistics(layer.kernel)
    assert statistics.misses > 112
    assert statistics.written_back == 0


def test_two_uses_of_one_table_in_a_step_equal_those_in_memory(tmp_path):
    found = list(batches(8))
    made = []
    for path in (None, tmp_path):
        layer = linear(path, cache_rows=240)  # both batches have to fit
        inputs = [tf.keras.Input([ROW], dtype="int64"), tf.keras.Input([ROW])]
        reversed_ids = tf.keras.layers.Lambda(lambda x: tf.where(x < 0, x, N - 1 - x))(inputs[0])
        both = tf.keras.layers.Add()([layer(inputs), layer([reversed_ids, inputs[1]])])
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, kernel_initializer="ones")(both))
        model.compile(optimizers.Adagrad(0.1), "mse")
        for x, y in found:
            model.train_on_batch(x, y)
        made.append((whole(layer.kernel), *slots(model.optimizer, layer.kernel)))
    for expected, got in zip(*made, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.skipif(not KERAS_3, reason="Keras 3 accumulates gradients")
def test_accumulated_gradients_equal_those_in_memory(tmp_path):
    made = []
    for path in (None, tmp_path):
        layer = linear(path, cache_rows=240)  # both batches have to fit
        model = model_of(layer, optimizers.Adagrad(0.1, gradient_accumulation_steps=2))
        for x, y in batches(8):
            model.train_on_batch(x, y)
        made.append(whole(layer.kernel))
    np.testing.assert_array_equal(*made)


def test_grouped_and_field_tables_equal_those_in_memory(tmp_path):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 10**9, (BATCH, 3))
    for x in (None, tmp_path):
        tier = None if x is None else storage(x)
        embedding = layers.FieldEmbedding(
            [50, 200, 80],
            [4, 4, 2],
            embeddings_initializer=_seeded(),
            storage=tier,
            out_of_range="wrap",
        )
        table = layers.SparseTable(N, 3, _seeded(), storage=tier)
        grouped = layers.GroupedSparseLinear({"a": table}, {"f": "a", "g": "a"})
        batch = {"f": tf.constant(ids % N), "g": tf.constant(ids % 7)}
        optimizer = optimizers.LazyAdam(0.1)
        for _ in range(3):
            with tf.GradientTape() as tape:
                outputs = [*embedding(tf.constant(ids)), *grouped(batch).values()]
                loss = tf.add_n([tf.reduce_sum(y**2) for y in outputs])
            weights = [*embedding.trainable_variables, *grouped.trainable_variables]
            gradients = tape.gradient(loss, [tf_variable(v) for v in weights])
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
        found = [whole(v) for v in weights]
        if x is None:
            expected = found
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def _seeded():
    return tf.keras.initializers.RandomUniform(-1, 1, seed=2)


@pytest.mark.parametrize("file_first", [True, False])
def test_tables_in_a_file_and_in_memory_and_a_normalization_share_the_groups_of_a_batch(
    tmp_path, file_first
):
    found = list(batches(6))
    made = []
    for path in (None, tmp_path):
        norm = layers.MaxNorm(N)
        deep, wide = linear(path), layers.SparseLinear(1, N, kernel_initializer="ones")
        optimizer = optimizers.Adagrad(0.1)

        def step(ids, values, norm=norm, deep=deep, wide=wide, optimizer=optimizer):
            used = [deep, wide] if file_first else [wide, deep]
            with tf.GradientTape() as tape:
                normed = norm((ids, values), training=True)
                loss = tf.add_n([tf.reduce_sum(layer(normed) ** 2) for layer in used])
            weights = [v for layer in (*used, norm) for v in layer.trainable_variables]
            gradients = tape.gradient(loss, [tf_variable(v) for v in weights])
            optimizer.apply_gradients(zip(gradients, weights, strict=True))

        for layer in (norm, deep, wide):
            layer.build(None)
        used = [deep, wide] if file_first else [wide, deep]
        optimizer.build([v for layer in (*used, norm) for v in layer.trainable_variables])
        step = tf.function(step)
        for (ids, values), _ in found:
            step(ids, values)
        graph = step.get_concrete_function(*found[0][0]).graph
        types = [op.type for op in graph.get_operations()]
        assert types.count("Twml>SparseLinearBackwardApply") == 2
        groupings = [types.count(f"Twml>{name}") for name in ("GroupIds", "GroupBatch")]
        made.append((whole(deep.kernel), whole(wide.kernel), *norm.get_weights(), groupings))
    for expected, got in zip(*made, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_moving_averages_are_refused(tmp_path):
    layer = linear(tmp_path)
    model = model_of(layer, optimizers.Adagrad(0.1, use_ema=True))
    with pytest.raises(ValueError, match="use_ema is not supported for tables with storage=Tiered"):
        model.train_on_batch(*next(batches(1)))


def test_the_op_of_moving_averages_refuses_the_table(tmp_path):
    layer = linear(tmp_path)
    layer(next(batches(1))[0])
    cache = tf_variable(layer.kernel)
    average, steps = tf.Variable(tf.zeros(cache.shape)), tf.Variable(tf.zeros([112], tf.int64))
    gradient = tf.IndexedSlices(tf.zeros([1, UNITS]), tf.constant([3], tf.int64))
    with pytest.raises(tf.errors.UnimplementedError, match="averages are not supported for a tab"):
        ops.average_rows(cache, average, steps, gradient, 3, 0.9)


def test_a_saved_model_has_the_whole_table_and_loads_with_and_without_storage(tmp_path):
    layer = linear(tmp_path)
    model = model_of(layer, optimizers.Adagrad(0.1))
    for x, y in batches(5):
        model.train_on_batch(x, y)
    expected = model.predict_on_batch(x)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    plain = model_of(linear(), optimizers.Adagrad(0.1))
    plain.load_weights(tmp_path / "m.weights.h5")
    for other in (loaded, plain):
        np.testing.assert_array_equal(other.predict_on_batch(x), expected)
    table = plain.get_layer("linear").kernel
    np.testing.assert_array_equal(whole(table), whole(layer.kernel))
    assert loaded.get_layer("linear").storage == layer.storage
    with pytest.raises(ValueError, match="whole table, and load the"):
        tf.train.Checkpoint(model).save(str(tmp_path / "ckpt"))


def test_changed_rows_are_those_that_were_updated(tmp_path):
    layer = linear(tmp_path)
    model = model_of(layer, optimizers.Adagrad(0.1))
    found = list(batches(9))
    model.train_on_batch(*found[0])
    variables = [layer.kernel, *model.optimizer.slots_of(layer.kernel)]
    changed = ops.ChangedRows(variables)
    first = changed.take()
    assert first.ids is None
    assert first.rows[0].shape == (N, UNITS)
    first.keep()
    for x, y in found[1:]:
        model.train_on_batch(x, y)
    taken = changed.take()
    ids = np.unique(np.concatenate([x[0].numpy().ravel() for x, _ in found[1:]]))
    np.testing.assert_array_equal(taken.ids, ids[ids >= 0])
    np.testing.assert_array_equal(taken.rows[0], whole(layer.kernel)[taken.ids])
    np.testing.assert_array_equal(taken.rows[1], slots(model.optimizer, layer.kernel)[0][taken.ids])


def test_too_many_distinct_ids_are_an_error_that_names_the_size(tmp_path):
    layer = layers.SparseLinear(2, N, storage=Tiered(tmp_path, cache_rows=20))
    with pytest.raises(tf.errors.InvalidArgumentError, match="cache_rows of at least 40, got 32"):
        layer(tf.range(40, dtype=tf.int64)[None])
    assert layer(tf.range(30, dtype=tf.int64)[None]).shape == (1, 2)


def test_ids_out_of_range_are_refused(tmp_path):
    layer = linear(tmp_path)
    ids = tf.ragged.constant([[3, N]], dtype=tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"out of range \[0, 600\)"):
        layer(ids)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"out of range \[0, 600\)"):
        layer.prefetch_rows(ids)


def test_the_cache_cannot_be_mistaken_for_the_table(tmp_path):
    layer = linear(tmp_path)
    layer(next(batches(1))[0])
    kernel = tf_variable(layer.kernel)
    for access in (kernel.numpy, kernel.read_value, lambda: tf.convert_to_tensor(kernel)):
        with pytest.raises(ValueError, match="is the cache of a table whose rows are in a file"):
            access()
    with pytest.raises(ValueError, match="is the cache of a table"):
        kernel.assign(tf.zeros(kernel.shape))


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}])
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_other_optimizers_are_refused_and_change_nothing(tmp_path, name, options):
    layer = linear(tmp_path)
    model = model_of(layer, getattr(tf.keras.optimizers, name)(0.1), **options)
    x, y = next(batches(1))
    before = model.predict_on_batch(x)
    with pytest.raises((ValueError, tf.errors.OpError)):
        model.train_on_batch(x, y)
    np.testing.assert_array_equal(model.predict_on_batch(x), before)


def test_hogwild_updates_are_refused(tmp_path):
    model = model_of(linear(tmp_path), optimizers.Adagrad(0.1, concurrency="hogwild"))
    with pytest.raises(
        tf.errors.UnimplementedError, match='"hogwild" is not supported for a table'
    ):
        model.train_on_batch(*next(batches(1)))


def test_functions_that_xla_compiles_are_refused(tmp_path):
    layer = linear(tmp_path)
    layer.build(None)
    ids = tf.constant([[1, 2]], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Twml>TieredSparseLinear"):
        tf.function(layer, jit_compile=True)(ids)


def test_replicas_servers_and_graphs_of_version_1_are_refused(tmp_path):
    with (
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
        pytest.raises(ValueError, match="is for one process without replicas, got <"),
    ):
        linear(tmp_path).build(None)

    class OnServers(Placement):
        """Such as the placements of parameter servers and TPUs."""

    with (
        placement_scope(OnServers()),
        pytest.raises(ValueError, match="cannot be used for tables on parameter servers or TPUs"),
    ):
        linear(tmp_path).build(None)
    with tf.Graph().as_default(), pytest.raises(NotImplementedError, match="graph of version 1"):
        linear(tmp_path)(tf.constant([[1, 2]], tf.int64))
    with pytest.raises(ValueError, match="got 1 and 'sharded'"):
        linear(tmp_path, placement="sharded")


def test_layers_without_the_argument_refuse_it(tmp_path):
    with pytest.raises((ValueError, TypeError), match="storage"):
        layers.DynamicSparseLinear(2, N, storage=storage(tmp_path))


def test_exports_that_would_have_a_part_of_the_table_are_refused(tmp_path):
    layer = linear(tmp_path)
    model = model_of(layer, optimizers.Adagrad(0.1))
    model.train_on_batch(*next(batches(1)))
    refused = "cannot be in a TensorFlow checkpoint or SavedModel"
    with pytest.raises(ValueError, match=refused):
        model.export(str(tmp_path / "export"))
    with pytest.raises(ValueError, match=refused):
        export.to_tf(model, tmp_path / "tf")
    with pytest.raises(ValueError, match=refused):
        tf.train.Checkpoint(v=tf_variable(layer.kernel)).save(str(tmp_path / "ckpt"))
    with pytest.raises(NotImplementedError):
        export.to_stock_tf(model, tmp_path / "stock")
    with pytest.raises(ValueError, match="is the cache of a table"):
        export.to_scorer(model, tmp_path / "scorer")


def test_large_tables_of_a_scope_are_in_files_and_the_others_in_memory(tmp_path):
    made = []
    for large in (None, LargeTables(Tiered(tmp_path, cache_rows=240))):
        with placement_scope(large or REPLICATED):
            deep, wide = linear(), layers.SparseLinear(1, 240, kernel_initializer="ones")
            deep.build(None)
            wide.build(None)
            dynamic = layers.DynamicSparseLinear(2, N)
            dynamic.build(None)
        optimizer = optimizers.LazyAdam(0.1)
        weights = [deep.kernel, wide.kernel]
        for (ids, values), _ in batches(4):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(deep((ids, values))) + tf.reduce_sum(wide((ids % 240, values)))
            gradients = tape.gradient(y, [tf_variable(v) for v in weights])
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
        made.append([whole(v) for v in weights])
        in_file = [tiered_placement_of(v) is not None for v in (*weights, dynamic.linear.kernel)]
        assert in_file == [large is not None, False, False]
    for got, expected in zip(*made, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert deep.get_config()["storage"] is None


def test_files_are_removed_with_the_table_and_are_never_shared(tmp_path):
    first, second = linear(tmp_path), linear(tmp_path)
    x = next(batches(1))[0]
    first(x), second(x)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["linear_kernel-1.rows", "linear_kernel.rows"]
    del first, second
    tf.keras.backend.clear_session()
    import gc

    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match="cache_rows must be a positive integer"):
        Tiered(tmp_path, cache_rows=0)
    with pytest.raises(ValueError, match="policy must be"):
        Tiered(tmp_path, cache_rows=1, policy="fifo")
    with pytest.raises(ValueError, match="storage must be a Tiered"):
        layers.SparseLinear(2, N, storage="disk")
    with pytest.raises(ValueError, match="storage needs num_partitions 1"):
        layers.SparseLinear(2, N, num_partitions=2, storage=Tiered(tmp_path, 16))
    (tmp_path / "linear_kernel.rows").write_text("mine")
    with pytest.raises(tf.errors.UnknownError, match="exists and is not a row store"):
        linear(tmp_path)(next(batches(1))[0])
    assert (tmp_path / "linear_kernel.rows").read_text() == "mine"


@pytest.mark.skipif(not KERAS_3, reason="files of Keras 2 have no slots of tables in files")
@pytest.mark.parametrize("wrapper", ["none", "composite", "loss scale", "loss scale of keras"])
def test_files_have_the_slots_of_tables_in_files(tmp_path, wrapper):
    def model(path):
        adagrad = optimizers.Adagrad(0.1)
        wrapped = {
            "none": lambda: adagrad,
            "composite": lambda: optimizers.CompositeOptimizer(
                optimizers.SGD(0.1), {"linear": adagrad}
            ),
            "loss scale": lambda: optimizers.LossScaleOptimizer(adagrad),
            "loss scale of keras": lambda: tf.keras.optimizers.LossScaleOptimizer(adagrad),
        }[wrapper]()
        return model_of(linear(path), wrapped), adagrad

    def slot_of(model, adagrad):
        kernel = model.get_layer("linear").kernel
        return np.array(placement_of(kernel).read(adagrad.slots_of(kernel)[0]))

    trained, its_adagrad = model(tmp_path / "a")
    for x, y in batches(3):
        trained.train_on_batch(x, y)
    want = slot_of(trained, its_adagrad)
    assert want.shape == (N, UNITS)
    assert len(np.unique(want)) > 100
    trained.save_weights(tmp_path / "m.weights.h5")
    trained.save(tmp_path / "m.keras")
    layers.save_model(trained, tmp_path / "in_pieces.keras")
    with zipfile.ZipFile(tmp_path / "in_pieces.keras") as archive:
        archive.extract("model.weights.h5", tmp_path)
    files = [tmp_path / "m.weights.h5", tmp_path / "model.weights.h5"]
    for path, file in itertools.product((None, tmp_path / "b"), files):
        again, adagrad = model(path)
        again.optimizer.build(again.trainable_variables)
        again.load_weights(file)
        np.testing.assert_array_equal(slot_of(again, adagrad), want)
        np.testing.assert_array_equal(
            whole(again.get_layer("linear").kernel), whole(trained.get_layer("linear").kernel)
        )
    loaded = tf.keras.models.load_model(tmp_path / "in_pieces.keras")
    np.testing.assert_array_equal(loaded.predict_on_batch(x), trained.predict_on_batch(x))


@pytest.mark.parametrize("read_before", [False, True])
def test_an_assignment_that_fails_changes_nothing(tmp_path, read_before):
    layer, plain = linear(tmp_path), linear()
    for each in (layer, plain):
        each.build(None)
    place = placement_of(layer.kernel)
    if read_before:
        place.read(layer.kernel)
    for value in (np.zeros((3, UNITS)), np.full((N, UNITS), "x")):
        with pytest.raises((ValueError, TypeError, tf.errors.OpError)):
            place.assign(layer.kernel, value)
        np.testing.assert_array_equal(whole(layer.kernel), whole(plain.kernel))
