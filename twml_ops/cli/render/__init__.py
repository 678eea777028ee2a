"""What the commands show: on the terminal, and in a run's report."""
