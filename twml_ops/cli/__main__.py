"""`python -m twml_ops.cli`: the command `twml-ops`."""

from twml_ops.cli import main

main()
