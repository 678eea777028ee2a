"""The report of a run, and tables and plots of results, which commands and notebooks show."""
