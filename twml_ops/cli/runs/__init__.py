"""The work of the commands. A run is a folder with a trained model, its metrics and a report."""
