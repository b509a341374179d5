"""What ships: a folder or file that holds a variant, its recipe, its evidence, its pins and a way to run it."""

from hasten.bundle.load import LoadedBundle, LoadedGenerator, LoadedTranscriber, load
from hasten.bundle.manifest import SCHEMA, read_manifest
from hasten.bundle.read import Contents, is_bundle, read, read_study
from hasten.bundle.verify import verify
from hasten.bundle.write import check_target, write

__all__ = [
    "SCHEMA",
    "Contents",
    "LoadedBundle",
    "LoadedGenerator",
    "LoadedTranscriber",
    "check_target",
    "is_bundle",
    "load",
    "read",
    "read_manifest",
    "read_study",
    "verify",
    "write",
]
