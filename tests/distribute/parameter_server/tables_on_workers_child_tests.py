"""Tests of servers in the process of a worker, run by test_one_process.py in a child process."""

import dataclasses
import json
import os
import socket
import tempfile
from functools import partial

from tests.distribute.parameter_server.model import (
    batches,
    model_of_tables,
    names_of_tables,
    optimizer_of_tables,
    plan_of_tables,
    same,
)
from tests.distribute.parameter_server.trainers import (
    child_test,
    expect_error,
    first_servers,
    trainer,
)
from twml_ops.distribute.launch import Ports
from twml_ops.distribute.parameter_server import Cluster
from twml_ops.distribute.parameter_server.cluster import ClusterError


@child_test
def a_worker_trains_the_same_bits_with_tables_in_its_process_and_on_servers():
    names = names_of_tables(["table", "row", "column", "replicated"], ["sgd", "adagrad"])
    build, plan = partial(model_of_tables, names), plan_of_tables(names, 4)
    found = []
    for own in ((), (1, 3), range(4)):
        cluster = dataclasses.replace(first_servers(4), own_servers=own)
        make = optimizer_of_tables(names)
        hybrid = trainer(make, build=build, loss="mse", plan=plan, cluster=cluster)
        hybrid.fit(batches, 3)
        assert [link.in_process for link in hybrid.placement.links] == [i in own for i in range(4)]
        found.append(hybrid.export().get_weights())
    same(found[0], found[1])
    same(found[0], found[2])


@child_test
def a_checkpoint_of_tables_on_servers_is_continued_with_tables_on_workers_and_the_reverse():
    names = names_of_tables(["table", "row", "replicated"], ["adagrad"])
    build, optimizer = partial(model_of_tables, names), optimizer_of_tables(names)
    weights = []
    for layouts in ([(), ()], [(), range(4)], [range(4), ()]):
        with tempfile.TemporaryDirectory() as folder:
            for own, steps in zip(layouts, (2, 4), strict=True):
                cluster = dataclasses.replace(first_servers(4), own_servers=own)
                options = {"plan": plan_of_tables(names, 4), "cluster": cluster}
                hybrid = trainer(
                    optimizer, build=build, loss="mse", checkpoint_dir=folder, **options
                )
                assert hybrid.fit(batches, steps).own_steps == 2
            weights.append(hybrid.export().get_weights())
    for found in weights[1:]:
        same(weights[0], found)


@child_test
def servers_that_no_worker_can_run_are_refused():
    tasks = {"ps": ["a:1", "b:1"], "worker": ["a:2", "b:2"]}
    before = os.environ.get("TF_CONFIG")
    try:
        for job, own in (("worker", [0, 0]), ("worker", [2]), ("worker", [-1]), ("ps", [0])):
            task = {"type": job, "index": 0, "servers": own}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": tasks, "task": task})
            text = "different numbers of the 2 ps tasks, and the task a worker, got "
            expect_error(ValueError, text, Cluster.from_environment)
        task = {"type": "worker", "index": 1, "servers": [1]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": tasks, "task": task})
        assert Cluster.from_environment().own_servers == [1]
    finally:
        os.environ.pop("TF_CONFIG")
        if before is not None:
            os.environ["TF_CONFIG"] = before


@child_test
def a_port_that_another_process_uses_is_named_by_the_worker_that_should_run_a_server_there():
    ports = Ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = Cluster([address], [f"127.0.0.1:{ports.numbers[0]}"], own_servers=[0])
        text = f"worker 0 cannot run ps 0: .* got {address}"
        expect_error(ClusterError, text, lambda: cluster.connect(60))
    ports.close()
