"""hasten makes machine-learning models faster, smaller and cheaper, and proves it."""
