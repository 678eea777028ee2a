"""Training on several hosts, which are network namespaces of this machine with a capped egress."""

BLOCK_ROWS = 2**18  # of a stock variable that is read and written whole
