"""A server in a process of its own, and requests to it, for benchmarks/serving.py."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np

from twml_ops import _child
from twml_ops.serving import messages
from twml_ops.serving.tensors import tensor_of

PATH = "/v1/models/scorer:predict"
METHOD = "/tensorflow.serving.PredictionService/Predict"
TICKS = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    """The answers to a number of callers, each of which makes its next request after the answer to
    the last.

    Attributes:
        p50: median time to an answer, in microseconds.
        p99: its 99th percentile.
        rate: requests per second of all callers.
        cpu: CPU time of the server for a request, in microseconds.
    """

    p50: float
    p99: float
    rate: float
    cpu: float


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        pid: its process.
        rest_port: its port of HTTP.
        grpc_port: its port of gRPC.
    """

    pid: int
    rest_port: int
    grpc_port: int

    def caller(self, api: str) -> Callable[[bytes], bytes]:
        """A function that sends an encoded request on a connection of its own.

        Args:
            api: REST or gRPC.
        """
        if api == "gRPC":
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}", options)
            return channel.unary_unary(METHOD)
        connection = http.client.HTTPConnection("127.0.0.1", self.rest_port)

        def call(body: bytes) -> bytes:
            connection.request("POST", PATH, body)
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer
            return answer

        return call

    def cpu_seconds(self) -> float:
        """The CPU time that the server has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def load(self, api: str, requests: list[bytes], callers: int, calls: int) -> Load:
        """Makes requests.

        Args:
            api: REST or gRPC.
            requests: encoded requests, which are sent in turn.
            callers: number of threads that make requests.
            calls: number of requests of each.
        """

        def run(seed: int) -> list[float]:
            call, times = self.caller(api), []
            for i in range(calls + 10):
                begin = time.perf_counter()
                call(requests[(seed + i) % len(requests)])
                times.append(time.perf_counter() - begin)
            return times[10:]

        cpu, begin = self.cpu_seconds(), time.perf_counter()
        with ThreadPoolExecutor(callers) as pool:
            times = np.concatenate(list(pool.map(run, range(callers))))
        seconds, total = time.perf_counter() - begin, callers * (calls + 10)
        p50, p99 = np.percentile(times, [50, 99]) * 1e6
        used = self.cpu_seconds() - cpu
        return Load(float(p50), float(p99), total / seconds, used / total * 1e6)


@contextlib.contextmanager
def serve(model: Path, poll: float = 0) -> Iterator[Served]:
    """Starts `twml-ops serve` on free ports, and ends it after the block.

    Args:
        model: the folder of the exported model, which is served by its name.
        poll: seconds between two looks for a new version; 0: none.
    """
    options = ["--rest-port", "0", "--grpc-port", "0", "--poll", str(poll)]
    command = _child.command("twml_ops.cli", "serve", str(model), *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ports = dict(re.findall(r"(\w+) on port (\d+)", process.stdout.readline()))
            yield Served(process.pid, int(ports["REST"]), int(ports["gRPC"]))
        finally:
            process.terminate()
            process.communicate()


def encode(api: str, arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes of a request.

    Args:
        api: REST or gRPC.
        arrays: its inputs.
    """
    if api == "REST":
        return json.dumps({"inputs": {n: a.tolist() for n, a in arrays.items()}}).encode()
    request: Any = messages.PredictRequest()
    request.model_spec.name = "scorer"
    for name, array in arrays.items():
        request.inputs[name].CopyFrom(tensor_of(array))
    return request.SerializeToString()


def decode(api: str, answer: bytes) -> np.ndarray:
    """The predictions of an answer."""
    if api == "REST":
        return np.array(json.loads(answer)["outputs"], np.float32)
    (output,) = messages.PredictResponse.FromString(answer).outputs.values()
    return np.float32(output.float_val).reshape([d.size for d in output.tensor_shape.dim])
