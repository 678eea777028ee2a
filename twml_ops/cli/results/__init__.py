"""Data classes of results: `runs` produces them and `render` shows them."""
