"""Writes `run.py`: the bundle's own way to run, which needs NumPy and one runtime and no hasten."""

from __future__ import annotations

from hasten.bundle.flatten import Import, flatten
from hasten.bundle.manifest import FALLBACK
from hasten.errors import InvalidInput
from hasten.runtimes.base import Runtime, language_of, speech_of

PROGRAM = "hasten.bundle.program"
CLASSES = {
    "single": (PROGRAM, "BundledModel"),
    "generate": ("hasten.bundle.generation", "BundledGenerator"),
    "encoder_decoder": ("hasten.bundle.transcription", "BundledTranscriber"),
}
SIDES = {"generate": language_of, "encoder_decoder": speech_of}
"""The side of a runtime that runs a program other than a single model."""
ROOTS = (
    (PROGRAM, "read_npz"),
    (PROGRAM, "write_npz"),
    (PROGRAM, "module_at"),
    ("hasten.errors", "HastenError"),
)
ALSO: tuple[Import, ...] = (
    ("argparse", None, "argparse"),
    ("sys", None, "sys"),
    ("warnings", None, "warnings"),
    ("pathlib", "Path", "Path"),
    ("typing", "Any", "Any"),
    ("typing", "TYPE_CHECKING", "TYPE_CHECKING"),
)

_HEAD = '''#!/usr/bin/env python3
"""Runs this bundle. It needs Python 3.11 or newer, NumPy and {package} (see requirements.txt), and nothing else.

    from run import Model
    with Model() as model:
        outputs = model(inputs)     # a dict of arrays with the batch axis first, or a list of samples

    python run.py inputs.npz outputs.npz

hasten {version} made this file from its own source: what runs here is what was measured.
"""

from __future__ import annotations

{imports}

FOLDER = Path(__file__).resolve().parent

if TYPE_CHECKING:
    import numpy as np

    # Names that only annotations mention.
    {hints} = Any
'''

_TAIL = '''
# ---- the way in ----


class Model({base}):
    """The model beside this file; see `{base}` for what it takes and gives."""

    def __init__(self, folder: str | Path = FOLDER, *, verify: bool = True) -> None:
        super().__init__(folder, {runtime}(), verify=verify)

{fallback}

def main() -> int:
    parser = argparse.ArgumentParser(prog="run.py", description="Run the model of this bundle on samples in a file.")
    parser.add_argument("inputs", help=".npz: an array for each input, batch axis first (or NAME[0], NAME[1], ...){or}")
    parser.add_argument("outputs", {optional}help=".npz to write: one array for each output{else}")
    arguments = parser.parse_args()
    try:{first}
        inputs = read_npz(arguments.inputs)
        with Model() as model:
            inputs, extra = model.without_extra(inputs)
            if extra:
                print(f"ignored, as the model has no such input: {', '.join(extra)}", file=sys.stderr)
            write_npz(arguments.outputs, model(inputs))
    except HastenError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


_FALLBACK = """
if not {runtime}().availability().usable:
    warnings.warn(f"{{{runtime}().availability().reason}}: the fallback of this bundle runs instead", stacklevel=1)
    Model = module_at(FOLDER / "{folder}" / "run.py").Model  # type: ignore[misc]
"""
_SPOKEN = {
    "{or}": ", or a .wav file",
    "{optional}": 'nargs="?", ',
    "{else}": "; what a .wav file says is printed",
    "{first}": """
        if arguments.inputs.lower().endswith(".wav"):
            with Model() as model:
                print(model.transcribe(arguments.inputs))
            return 0
        if arguments.outputs is None:
            parser.error("name a file for the outputs")""",
}
"""What `run.py` of a speech model says and does besides."""


def run_script(runtime: Runtime, package: str, version: str, program: str = "single", *, fallback: bool = False) -> str:
    """The text of `run.py` for a bundle on `runtime`, which `package` of PyPI provides; `version` is hasten's.

    With `fallback`, the bundle inside takes over where the runtime is missing.
    Raises `InvalidInput` for a program that no bundle runs.
    """
    if program not in CLASSES:
        raise InvalidInput(f"a bundle cannot run the program {program!r} yet")
    kind = type(SIDES[program](runtime) if program in SIDES else runtime)
    roots = [CLASSES[program], *ROOTS, (kind.__module__, kind.__qualname__)]
    # `Model` is what callers of run.py import; hasten's handle on a model file takes another name there.
    flat = flatten(roots, ALSO, {"Model": "ModelFile"})
    hints = " = ".join(name for name in flat.hints if name != "np")
    parts = [_HEAD.format(package=package, version=version, imports="\n".join(flat.imports), hints=hints)]
    for name, purpose, text in flat.sections:
        parts.append(f"\n# ---- {name} ----\n# {purpose}\n\n\n{text}\n\n")
    second = _FALLBACK.format(runtime=kind.__qualname__, folder=FALLBACK) if fallback else ""
    tail = _TAIL.replace("{fallback}", second).replace("{runtime}", kind.__qualname__)
    tail = tail.replace("{base}", CLASSES[program][1])
    for key, text in _SPOKEN.items():
        tail = tail.replace(key, text if program == "encoder_decoder" else "")
    parts.append(tail)
    return "".join(parts)
