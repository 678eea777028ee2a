"""The curve: its cells, its arithmetic, its page, and a tiny run on hosts with limits."""

import json

import numpy as np
import pytest

from benchmarks.curve import cells, measure, page, process, stock_layers
from benchmarks.curve.cells import Cell
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


def test_the_wire_is_as_slow_as_the_core():
    assert Cell("flights", cells.SYNCHRONOUS, 1, 1, wire=8.0).egress(0.05) == pytest.approx(5e7)
    assert Cell("flights", cells.OURS).egress(0.05) is None


def test_all_hosts_fit_into_the_cores(monkeypatch):
    for cores in (1, 2, 64):
        monkeypatch.setattr(cells.os, "sched_getaffinity", lambda _, n=cores: range(n))
        used = cells.default_share() * (max(cells.SERVERS) + max(cells.WORKERS))
        assert 0.7 * cores < used <= cells.USED * cores


def test_the_rate_of_a_worker_is_between_the_ends_of_calls():
    assert measure.rate([(10.0, 8, 1.0), (12.0, 8, 1.0), (14.0, 8, 1.0)]) == 4.0


def test_the_losses_of_all_workers_are_in_the_order_of_time():
    calls = [[(1.0, 8, 4.0), (3.0, 8, 2.0)], [(2.0, 8, 3.0), (4.0, 24, 1.0)]]
    assert measure.curve(calls, 0.5, points=2) == [[1.5, 16, 3.5], [3.5, 48, 1.25]]
    assert measure.curve(calls, 0.5, points=4)[0] == [0.5, 8, 4.0]


def measured(steps, cpu, **more):
    found = {"steps": steps, "cpu": cpu, "sent": dict.fromkeys(cpu, 0), "egress": None}
    return {**found, "share": 0.1, "seconds": 20.0, "disturbed": False, "losses": [], **more}


def test_the_page_compares_with_one_host_and_states_shares():
    cluster = Cell("reference", cells.SYNCHRONOUS, 4, 8)
    sent = {"server0": 4e6, "server1": 1e6, "worker0": 2e6}
    found = {
        Cell("reference", cells.OURS).name: measured(8.0, {"worker0": 0.1}),
        Cell("reference", cells.STOCK).name: measured(0.5, {"worker0": 0.1}),
        cluster.name: measured(
            16.0, {"server0": 0.1, "server1": 0.08, "worker0": 0.05}, sent=sent, egress=8e6
        ),
    }
    about = dict.fromkeys(("cpu", "simd", "cores", "last_level_cache", "memory_gib"), 1)
    about |= dict.fromkeys(("system", "python", "date", "load_before", "command"), "x")
    result = {"cells": found, "failed": {}, "share": 0.1, "machine": {**about, "versions": {}}}
    result["learned"] = {"64 batches, x": {"loss": 0.5, "seconds": 7.4}}
    text = page.section(result)
    assert (
        "| synchronous, 4 servers, 8 workers, 10 Gbit/s | 16 | 2.00 × | 32.00 × | 80% to 100% "
        "| 50% | 14.4 | 0.44 | 50% |"
    ) in text
    assert "| 64 batches, x | 0.5000 | 7 |" in text
    assert "| one host, stock | 0.5 | 0.06 × | 1.00 × | – | 100% | 200.0 | – | – |" in text


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
    found = measure.measure(cell, 0.3, 1.0)
    assert found["steps"] > 0
    assert list(found["cpu"]) == cell.hosts
    assert all(used <= 0.33 for used in found["cpu"].values())
    assert (sum(found["sent"].values()) > 1e4) != inside
