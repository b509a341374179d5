"""A runtime and a lever that hasten finds through entry points."""
