"""The inference figures: `python -m benchmarks.inference`."""
