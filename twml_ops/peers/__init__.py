"""Peer-to-peer training without a server, by one-sided writes of MPI.

Every rank trains on its share of the data, scatters its model into the memory of some other ranks,
and merges what it has received whenever it likes. This package needs NumPy and, once a `PeerGroup`
is made, mpi4py and a library of MPI (`pip install 'twml_ops[mpi]'`). It does not need TensorFlow;
`twml_ops.distribute.PeerAveraging` trains Keras models with it.
"""

from twml_ops.peers.channel import Channel, Counts, Message
from twml_ops.peers.dataflow import receivers
from twml_ops.peers.group import PeerFailure, PeerGroup
from twml_ops.peers.reduce import Update
from twml_ops.peers.shared_vector import SharedVector

__all__ = [
    "Channel",
    "Counts",
    "Message",
    "PeerFailure",
    "PeerGroup",
    "SharedVector",
    "Update",
    "receivers",
]
