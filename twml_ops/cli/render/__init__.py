"""The output of the commands: on the terminal, and in the report of a run."""
