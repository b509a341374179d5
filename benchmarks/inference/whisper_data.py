"""Asterisk's prompts (CC BY-SA) as clips with transcripts: real sentences of three words or more, at 16 kHz.

python -m benchmarks.inference.whisper_data FOLDER
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

from benchmarks.common import downloads
from hasten.errors import Failed

PACKAGES = {
    "asterisk-core-sounds-en-wav_1.6.1-1_all.deb": "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
    "asterisk-core-sounds-en_1.6.1-1_all.deb": "973e797d28e37fa6ca3c0a9d6fa717e77cf1268ae916bf09fd3503113cdffa50",
}
SOUNDS = "usr/share/asterisk/sounds/en_US_f_Allison"
TEXTS = "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
RATE = 16000
LEAST_WORDS = 3


def folder() -> Path:
    """The folder in the user's cache, made at first use."""
    path = downloads() / "asterisk-prompts"
    if not (path / "transcripts.csv").is_file():
        write(path)
    return path


def write(path: Path) -> None:
    """Fetch the packages, and write every usable prompt as a .wav file with transcripts.csv beside them."""
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for name, digest in PACKAGES.items():
            subprocess.run(["dpkg-deb", "-x", str(package(name, digest)), str(root)], check=True)
        texts = transcripts(gzip.decompress((root / TEXTS).read_bytes()).decode("utf-8", "replace"))
        rows = []
        for name, text in texts.items():
            source = root / SOUNDS / f"{name}.wav"
            if source.is_file():
                target = path / f"{name.replace('/', '-')}.wav"
                resampled(source, target)
                rows.append((target.name, text))
    with (path / "transcripts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "text"), *rows])


def transcripts(text: str) -> dict[str, str]:
    """Prompts that are sentences: no tones, no lists of letters and digits, no figures that may be said in two ways."""
    found = {}
    for line in text.splitlines():
        name, _, said = line.partition(":")
        said = said.strip()
        words = said.split()
        plain = said and not re.search(r"[\[\]()<>0-9/]|\.\.\.", said)
        spelt = any(len(word) == 1 and word not in "aI" for word in words)
        if not line.startswith(";") and plain and len(words) >= LEAST_WORDS and not spelt:
            found[name.strip()] = said
    return found


def resampled(source: Path, target: Path) -> None:
    """The same sound at 16 kHz."""
    import numpy as np
    from scipy.signal import resample_poly

    with wave.open(str(source)) as file:
        rate = file.getframerate()
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64)
    wide = resample_poly(sound, RATE // 1000, rate // 1000)
    with wave.open(str(target), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.clip(np.rint(wide), -32768, 32767).astype("<i2").tobytes())


def package(name: str, digest: str) -> Path:
    """A package of Debian's by its file name, fetched by apt at first use."""
    path = downloads() / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        title, version, _ = name.split("_")
        done = subprocess.run(
            ["apt-get", "download", f"{title}={version}"], cwd=path.parent, capture_output=True, text=True, check=False
        )
        if done.returncode or not path.is_file():
            raise Failed(f"{name} could not be fetched: {done.stderr.strip()[-200:]}", "it is a package of Debian's")
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise Failed(f"{name} is not the file that was expected", f"delete {path}")
    return path


if __name__ == "__main__":
    write(Path(sys.argv[1]))
