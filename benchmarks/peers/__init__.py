"""Peer-to-peer training: torn reads, loss by examples and time, traffic, and other ways to train."""
