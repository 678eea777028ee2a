"""The commands: each module declares the options of a command and calls `cli.runs`."""
