"""The commands: each parses its options and calls what does the work."""
