"""Quality of `twml-ops train` beside other libraries: docs/quality.md."""
