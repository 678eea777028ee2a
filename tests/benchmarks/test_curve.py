"""The curve: its cells, its arithmetic, its page, and a tiny run on hosts with limits."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.curve import batch_recorder, cells, jobs, measure, page, process, stock_layers
from benchmarks.curve.cells import Cell
from benchmarks.curve.jobs import PLAIN
from benchmarks.distributed import network
from twml_ops import layers, optimizers

tf = stock_layers.tf  # benchmarks run with one TensorFlow only
WHY_NOT = network.unavailable(cpu=True)
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts with CPUs: {WHY_NOT}")


def test_the_cells_have_different_names_and_begin_with_one_host():
    found = cells.cells()
    assert len({cell.name for cell in found}) == len(found)
    assert found[0] == Cell("reference", cells.OURS)
    assert Cell("criteo", cells.HOGWILD, 2, 1) in found


def test_the_hosts_of_a_cell_are_servers_and_workers():
    cell = Cell("flights", cells.SYNCHRONOUS, 1, 2)
    assert cell.hosts == ["server0", "worker0", "worker1"]
    assert cell.name == "flights: synchronous, 1 server, 2 workers, 10 Gbit/s"
    inside = Cell("flights", cells.SYNCHRONOUS, 2, 2, inside=True)
    assert inside.hosts == ["worker0", "worker1"]
    assert "2 servers in workers" in inside.name
    rare = Cell("flights", cells.ASYNCHRONOUS, 1, 1, exchange_every=4)
    assert rare.name.endswith("1 server, 1 worker, 10 Gbit/s, exchange every 4 steps")
    assert Cell("flights", cells.STOCK).hosts == ["worker0"]
    assert Cell("flights", cells.OURS, beside=2).hosts == ["worker0", "worker1", "worker2"]


def test_the_wire_is_as_slow_as_the_core():
    assert Cell("flights", cells.SYNCHRONOUS, 1, 1, wire=8.0).egress(0.05) == pytest.approx(5e7)
    assert Cell("flights", cells.OURS).egress(0.05) is None


def test_all_hosts_fit_into_the_cores(monkeypatch):
    for cores in (1, 2, 64):
        monkeypatch.setattr(cells.os, "sched_getaffinity", lambda _, n=cores: range(n))
        used = cells.default_share() * (max(cells.SERVERS) + max(cells.WORKERS))
        assert 0.7 * cores < used <= cells.USED * cores


def test_hosts_start_on_as_many_cores_as_they_have_later(monkeypatch):
    monkeypatch.setattr(measure.os, "sched_getaffinity", lambda _: {0, 1})
    assert [measure.Limits(0.1).cores(i) for i in (0, 1)] == [[0, 1]] * 2
    spare = measure.Limits(0.1, spare_cores=(1, 2, 3))
    assert [spare.cores(i) for i in (0, 1, 2)] == [[0, 1], [2, 3], [0, 1]]


def test_the_rate_of_a_worker_is_between_the_ends_of_calls():
    assert measure.rate([(10.0, 8, 1.0), (12.0, 8, 1.0), (14.0, 8, 1.0)]) == 4.0


def test_the_losses_of_all_workers_are_in_the_order_of_time():
    calls = [[(1.0, 8, 4.0), (3.0, 8, 2.0)], [(2.0, 8, 3.0), (4.0, 24, 1.0)]]
    assert measure.curve(calls, 0.5, points=2) == [[1.5, 16, 3.5], [3.5, 48, 1.25]]
    assert measure.curve(calls, 0.5, points=4)[0] == [0.5, 8, 4.0]


def measured(steps, cpu, **more):
    found = {"steps": steps, "cpu": cpu, "sent": dict.fromkeys(cpu, 0), "egress": None}
    return {**found, "share": 0.1, "seconds": 20.0, "disturbed": False, "losses": [], **more}


def result_of(found, **more):
    about = dict.fromkeys(("cpu", "simd", "cores", "last_level_cache", "memory_gib"), 1)
    about |= dict.fromkeys(("system", "python", "date", "load_before", "command"), "x")
    result = {"cells": found, "learned": {}, "failed": {}, "share": 0.1}
    return {**result, "machine": {**about, "versions": {}}, **more}


CLUSTER = Cell("reference", cells.SYNCHRONOUS, 4, 8)
SENT = {"server0": 4e6, "server1": 1e6, "worker0": 2e6}
ALONE = Cell("reference", cells.OURS)
FOUND = {
    ALONE.name: [measured(s, {"worker0": 0.1}) for s in (9.0, 8.0, 2.0)],
    Cell("reference", cells.OURS, beside=1).name: [
        measured(4.0, {"worker0": 0.1, "worker1": 0.06})
    ],
    Cell("reference", cells.STOCK).name: [measured(0.5, {"worker0": 0.1})],
    CLUSTER.name: [
        measured(16.0, {"server0": 0.1, "server1": 0.08, "worker0": 0.05}, sent=SENT, egress=8e6)
    ],
    Cell("reference", cells.HOGWILD, 4, 8).name: [],  # it has failed
}


def test_the_page_compares_with_one_host_and_states_shares(monkeypatch):
    monkeypatch.setattr(page, "cells", lambda: [*map(cell_of, FOUND)])
    text = page.section(result_of(FOUND))
    assert (
        "| synchronous, 4 servers, 8 workers, 10 Gbit/s | 16 | 2.00 × | 4.00 × | 32.00 × "
        "| – | – | – | 80% to 100% | 50% | 14.4 | 0.44 | 50% |"
    ) in text
    stock = "| one host, stock | 0.5 | 0.06 × | 0.12 × | 1.00 × | – | – | – | – | 100% | 200.0 "
    assert stock in text
    assert "| one host, twml_ops | 8 (2 to 9) | 1.00 ×" in text
    assert "| 60% to 100% | 20.0 |" in text  # of one of the hosts that are beside each other
    assert "Hogwild" not in text


def cell_of(name):
    return {
        ALONE.name: ALONE,
        CLUSTER.name: CLUSTER,
        **{
            c.name: c
            for c in (
                Cell("reference", cells.OURS, beside=1),
                Cell("reference", cells.STOCK),
                Cell("reference", cells.HOGWILD, 4, 8),
            )
        },
    }[name]


def test_learning_is_compared_by_the_time_until_the_loss_of_one_host(monkeypatch):
    monkeypatch.setattr(page, "SMOOTH", 2)

    def learned(loss, *losses):
        return [{"loss": loss, "seconds": losses[-1][0], "losses": losses}]

    runs = {
        "64 batches, flights: one host, twml_ops": learned(
            0.5, (3.0, 20, 0.9), (5.0, 32, 0.5), (9.4, 64, 0.4)
        ),
        f"64 batches, {Cell('flights', cells.ASYNCHRONOUS, 4, 8).name}": learned(
            0.52, (1.0, 16, 0.8), (2.0, 32, 0.44), (3.4, 48, 0.46), (4.0, 64, 0.43)
        ),
        f"64 batches, {Cell('flights', cells.HOGWILD, 4, 8).name}": learned(
            0.7, (2.0, 60, 0.7), (3.0, 64, 0.6)
        ),
    }
    text = page.section(result_of({}, learned=runs))
    assert "| flights: one host, twml_ops | 0.5000 | 9 | 9 |" in text
    assert "| flights: asynchronous, 4 servers, 8 workers, 10 Gbit/s | 0.5200 | 4 | 3 |" in text
    assert "| 0.7000 | 3 | not reached |" in text


JOB = {"tables": [{"input_dim": 1000, "units": 8, "entries": 20.0}], "batch": 64}
JOBS = {"reference": {"1": JOB, "4": {**JOB, "batch": 256}}}
COSTS = {"alone": {"step": 50.0}, "worker": {"step": 20.0}, "server": {"entry": 0.1}}


def test_predictions_know_one_host_the_quota_and_the_network():
    """One host needs 100 us where the costs say 50: all costs are doubled."""
    cell = Cell("reference", cells.ASYNCHRONOUS, 1, 1, wire=1e9)

    def seconds(alone=50e-6, cell=cell, **wire):
        costs = {"message": 0.0, "byte": 0.0, **wire}
        found = jobs.Predictions({"0": COSTS}, costs, JOBS, {"reference": alone}, 0.1)
        return 1 / found.predict(cell)

    assert seconds() == pytest.approx(10 * (20e-6 + 1280 * 0.1e-6))
    assert seconds(100e-6) == pytest.approx(2 * seconds())
    # Products and gradients of 64 x 8 numbers, and the packed ids, cost both hosts a little.
    exchanged = 64 * 8 * 4 * 2 + 2000
    assert seconds(byte=1e-9) - seconds() == pytest.approx(2e-8 * exchanged, rel=0.2)
    assert seconds(message=1e-6) - seconds() == pytest.approx(2 * 10 * 3e-6)
    found = jobs.Predictions({"0": COSTS}, {}, JOBS, {"reference": 1e-4}, 0.1)
    assert found.predict(ALONE) is None
    # Four steps have as many entries in one exchange, which is a cost of the servers here.
    four = dataclasses.replace(cell, exchange_every=4)
    assert seconds(cell=four) == pytest.approx(seconds())


def test_predictions_with_the_cpu_time_that_was_used_are_as_fast_as_its_hosts_allow():
    used = jobs.Factors(3e-3, 5e-3)
    found = jobs.Predictions({"0": COSTS}, {"message": 0.0, "byte": 0.0}, JOBS, {PLAIN: 5e-5}, 0.1)
    for way, servers, workers in ((cells.ASYNCHRONOUS, 2, 100), (cells.SYNCHRONOUS, 2, 3)):
        cell = Cell(PLAIN, way, servers, workers, wire=1e9, axis="row")
        rate = found.predict(cell, found.factors(cell, used))
        limit = 0.1 * servers / used.servers
        if way == cells.ASYNCHRONOUS:
            assert rate == pytest.approx(limit, rel=0.05)
        else:
            assert 1 / rate == pytest.approx(1 / limit + used.workers / 0.1 / workers)
    inside = Cell(PLAIN, cells.SYNCHRONOUS, 2, 2, wire=1e9, axis="row", inside=True)
    rate = found.predict(inside, found.factors(inside, jobs.Factors(4e-3, 0.0)))
    assert 2 / rate <= 2 * 4e-3 / 0.1 * (1 + 1e-9)


def test_the_smallest_cluster_of_its_kind_calibrates_a_cell():
    large = Cell("criteo", cells.HOGWILD, 4, 8)
    assert jobs.calibrating(large) == Cell("criteo", cells.ASYNCHRONOUS, 1, 2)
    assert jobs.calibrating(CLUSTER) == Cell("reference", cells.SYNCHRONOUS, 1, 2)
    alone = dataclasses.replace(CLUSTER, servers=1, workers=1)
    assert jobs.calibrating(alone) == Cell("reference", cells.ASYNCHRONOUS, 1, 2)


def test_a_job_has_the_large_tables_and_the_batch_of_a_training():
    from benchmarks.cluster_cost.trainings import Training

    ids = tf.ragged.constant([[1, 3], [2], [3, 3, 0]], dtype=tf.int64)

    def model():
        i = tf.keras.Input([None], dtype="int64", ragged=True)
        large, small = (layers.SparseLinear(4, n, use_bias=False)(i) for n in (513, 512))
        hidden = tf.keras.layers.Add()([large, small])
        return tf.keras.Model(i, tf.keras.layers.Dense(2)(hidden))

    data = tf.data.Dataset.from_tensors((ids, tf.zeros([3, 2])))
    job = batch_recorder.job_of(Training(model, None, "mse", lambda worker: data), 1)
    assert job.batch == 3
    (table,) = job.tables
    assert (table.input_dim, table.units, table.entries, table.unique) == (513, 4, 2.0, 4)
    assert (job.dense, job.slots, job.values) == (10 + 4 * 512, 1, False)


def test_results_of_another_share_are_not_mixed(tmp_path):
    from benchmarks.curve import __main__ as curve

    file = tmp_path / "curve.json"
    assert curve.load(file, 0.07)["cells"] == {}
    file.write_text(json.dumps({"share": 0.07, "cells": {"x": 1}, "failed": {}}))
    assert curve.load(file, 0.07)["cells"] == {"x": 1}
    with pytest.raises(SystemExit, match=r"--share 0.07, got 0.1"):
        curve.load(file, 0.1)


def test_joined_batches_have_the_examples_of_all_workers_in_their_order():
    made = [
        tf.data.Dataset.from_tensors((tf.ragged.constant([[i], [i, i]]), tf.fill([2, 1], i)))
        for i in (1, 2)
    ]
    x, y = next(iter(process.joined(made)))
    assert x.to_list() == [[1], [1, 1], [2], [2, 2]]
    assert y.numpy().tolist() == [[1], [1], [2], [2]]


def test_the_same_model_with_stock_products_and_optimizer_learns_the_same():
    ids = tf.ragged.constant([[1, 3], [2], [3, 3, 0]], dtype=tf.int64)
    values = tf.ones_like(ids, tf.float32) * 2

    def build():
        layer = layers.SparseLinear(4, 5, kernel_initializer="ones", bias_initializer="ones")
        i = tf.keras.Input([None], dtype="int64", ragged=True)
        v = tf.keras.Input([None], dtype="float32", ragged=True)
        return tf.keras.Model([i, v], layer((i, v)))

    kernels = []
    ours = optimizers.Adagrad(0.1)
    for model, optimizer in (
        (build(), ours),
        (stock_layers.model(build), stock_layers.optimizer(ours)),
    ):
        model.compile(optimizer, "mse", jit_compile=False)
        data = tf.data.Dataset.from_tensors(((ids, values), tf.zeros([3, 4]))).repeat(3)
        model.fit(data, verbose=0)
        kernels.append(model.get_weights()[0])
    assert type(stock_layers.optimizer(ours)) is tf.keras.optimizers.Adagrad
    np.testing.assert_allclose(*kernels, rtol=1e-5)
    assert not np.allclose(kernels[0], 1)


@needs_hosts
@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_a_cluster_is_measured(inside):
    cell = Cell("flights", cells.ASYNCHRONOUS, 1, 1, inside=inside)
    found = measure.measure(cell, measure.Limits(0.3), 1.0)
    assert found["steps"] > 0
    assert list(found["cpu"]) == cell.hosts
    assert all(used <= 0.33 for used in found["cpu"].values())
    assert (sum(found["sent"].values()) > 1e4) != inside
