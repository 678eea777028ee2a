"""Distributed training on hosts that are network namespaces of one machine, with capped egress."""

BLOCK_ROWS = 2**18  # maximum rows of a stock variable that is read and written as a whole
