"""A server for scorers: TensorFlow Serving's REST and gRPC interfaces, without TensorFlow.

It needs the packages of the extra `serve`: `pip install "twml_ops[serve]"`.
"""

from twml_ops.serving.options import ServerOptions
from twml_ops.serving.server import Server

__all__ = ["Server", "ServerOptions"]
