"""What ships: a folder or file that holds a variant, its recipe, its evidence, its pins and a way to run it."""

from hasten.bundle.load import LoadedBundle, load
from hasten.bundle.manifest import SCHEMA, read_manifest
from hasten.bundle.verify import verify
from hasten.bundle.write import destination, write

__all__ = ["SCHEMA", "LoadedBundle", "destination", "load", "read_manifest", "verify", "write"]
