"""Where the CPU time of a training step goes, in one process and in a cluster on one machine."""
