"""Measures peer-to-peer training: torn reads, learning, traffic, and other ways to train."""
