"""The measurements behind docs/performance.md; `make bench` runs them all."""
