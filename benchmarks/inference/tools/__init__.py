"""Scripts that run in a peer's own environment, where hasten is not: `python SCRIPT MODEL SAMPLES.npz INTO`."""
