"""Steps a second of a cluster against its number of hosts, each with a share of a core."""
