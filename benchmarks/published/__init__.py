"""Published systems beside the standard models: docs/published.md."""
