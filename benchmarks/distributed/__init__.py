"""Training on several hosts, which are network namespaces of this machine with a capped egress."""
