"""Reads .wav files: PCM of 8 to 32 bits or floats, one channel or more, any rate, as one channel at 16 kHz."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import Failed, InvalidInput

if TYPE_CHECKING:
    import numpy as np

WAV_RATE = 16000
LONGEST_S = 4 * 3600
"""A clip of more hours than this is a mistake."""
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


def read_wav(path: str | Path) -> np.ndarray:
    """The sound in `path`: float32 [samples] at 16 kHz, in -1..1. Raises `InvalidInput` naming the file."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None
    return decoded(content, path.name)


def decoded(content: bytes, name: str) -> np.ndarray:
    """The sound in the bytes of a .wav file called `name`."""
    import numpy as np

    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise InvalidInput(f"{name} is not a .wav file", "convert it: ffmpeg -i INPUT -ar 16000 -ac 1 OUTPUT.wav")
    at, form, data = 12, b"", b""
    while at + 8 <= len(content) and not data:
        size = struct.unpack_from("<I", content, at + 4)[0]
        chunk = content[at + 8 : at + 8 + size]
        if content[at : at + 4] == b"fmt ":
            form = chunk
        elif content[at : at + 4] == b"data":
            data = chunk
            if len(chunk) < size and size < 0xFFFFFFFF:  # that much is said by what was written to a pipe
                raise InvalidInput(f"{name} was cut off: {len(chunk)} of {size} bytes are there", "copy it again")
            if not size:
                break
        at += 8 + size + size % 2
    if len(form) < 16:
        raise InvalidInput(f"{name} does not say what sound it holds", "copy it again")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if kind == EXTENSIBLE and len(form) >= 26:
        kind = struct.unpack_from("<H", form, 24)[0]
    known = {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)}
    if (kind, bits) not in known or not channels or not 1000 <= rate <= 768_000:
        raise InvalidInput(
            f"{name} holds sound of kind {kind} with {bits} bits at {rate} Hz, which is not read",
            "convert it: ffmpeg -i INPUT -ar 16000 -ac 1 OUTPUT.wav",
        )
    width = bits // 8 * channels
    data = data[: len(data) // width * width]
    if not data:
        raise InvalidInput(f"{name} holds no sound", "remove it")
    if len(data) // width > LONGEST_S * rate:
        raise InvalidInput(f"{name} is longer than {LONGEST_S // 3600} hours", "cut it into clips")
    sound: np.ndarray
    if kind == FLOAT:
        sound = np.frombuffer(data, f"<f{bits // 8}").astype(np.float32, copy=False)
    elif bits == 8:
        sound = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    elif bits == 24:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        sound = wide.view("<i4")[:, 0].astype(np.float32) / 2**31
    else:
        sound = np.frombuffer(data, f"<i{bits // 8}").astype(np.float32) / 2 ** (bits - 1)
    mono = sound.reshape(-1, channels).mean(axis=1)
    if not np.isfinite(mono).all():
        raise InvalidInput(f"{name} holds numbers that are not finite", "record or convert it again")
    return at_16_khz(mono, rate)


def at_16_khz(sound: np.ndarray, rate: int) -> np.ndarray:
    """The same sound at 16 kHz, by its spectrum: what both rates can hold stays, what only one can is left out."""
    import numpy as np

    if rate == WAV_RATE:
        return np.ascontiguousarray(sound, np.float32)
    common = math.gcd(rate, WAV_RATE)
    parts = (len(sound) + rate // 10) // (rate // common) + 1  # both lengths are whole, and silence follows the sound:
    before, after = parts * (rate // common), parts * (WAV_RATE // common)  # a spectrum takes it to begin again
    spectrum = np.fft.rfft(sound, before)
    kept = np.zeros(after // 2 + 1, spectrum.dtype)
    most = min(len(kept), len(spectrum))
    kept[:most] = spectrum[:most]
    found = np.fft.irfft(kept, after) * (after / before)
    return found[: max(1, round(len(sound) * WAV_RATE / rate))].astype(np.float32)
