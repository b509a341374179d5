"""Clips of speech: every form of .wav, tables of transcripts, and errors that name the file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from hasten.data import SampleSet, ingest_here
from hasten.data.audio import AS_AUDIO
from hasten.data.sound import at_16_khz, decoded, read_wav
from hasten.errors import InvalidInput
from hasten.model import Facts, Model
from hasten.workload import Samples

MODEL = Model(Path("speech.xml"), "openvino", "0" * 64, AS_AUDIO, Facts(0, 0))
TONE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)


def wav(data: bytes, kind: int = 1, channels: int = 1, rate: int = 16000, bits: int = 16) -> bytes:
    width = bits // 8 * channels
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * width, width, bits)
    body = b"fmt " + struct.pack("<I", len(form)) + form + b"LIST\x02\x00\x00\x00hi"
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def pcm(sound: np.ndarray, bits: int = 16) -> bytes:
    whole = np.rint(sound * (2 ** (bits - 1) - 1)).astype(np.int64)
    if bits == 8:
        return (whole + 128).astype(np.uint8).tobytes()
    if bits == 24:
        return whole.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_whole_numbers_of_every_width_are_read(bits: int) -> None:
    assert np.allclose(decoded(wav(pcm(TONE, bits), bits=bits), "a.wav"), TONE, atol=1.5 / 2 ** (bits - 1) + 1e-6)


@pytest.mark.parametrize("bits", [32, 64])
def test_floats_are_read(bits: int) -> None:
    assert np.allclose(decoded(wav(TONE.astype(f"<f{bits // 8}").tobytes(), 3, bits=bits), "a.wav"), TONE, atol=1e-6)


def test_channels_are_mixed() -> None:
    both = np.stack([TONE, np.zeros_like(TONE)], axis=1)
    assert np.allclose(decoded(wav(pcm(both), channels=2), "a.wav"), TONE / 2, atol=1e-3)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_a_tone_stays_what_it_is_at_16_khz(rate: int) -> None:
    sound = (0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.float32)
    found = at_16_khz(sound, rate)
    assert len(found) == 16000
    assert np.abs(found - TONE)[400:-400].max() < 0.02


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"nothing", "not a .wav"),
        (wav(pcm(TONE))[:2000], "cut off"),
        (wav(b""), "no sound"),
        (wav(b"\0" * 80, kind=85, bits=16), "not read"),
        (wav(b"\0" * 80, rate=10), "not read"),
        (wav(np.full(20, np.nan, "<f4").tobytes(), 3, bits=32), "not finite"),
        (wav(b"\0" * 80)[:16], "does not say"),
    ],
)
def test_files_that_cannot_be_read_are_named(content: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.wav"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"bad\.wav.*{match}"):
        read_wav(path)


def folder(path: Path, count: int = 3) -> Path:
    path.mkdir(exist_ok=True)
    for number in range(count):
        (path / f"{number}.wav").write_bytes(wav(pcm(TONE[: 4000 + 1000 * number])))
    return path


def read(path: Path, into: Path) -> Samples:
    return ingest_here(str(path), MODEL, into)


def test_a_folder_with_a_table_has_transcripts(tmp_path: Path) -> None:
    home = folder(tmp_path / "clips")
    (home / "transcripts.csv").write_text('file,text\n0.wav,"one, two"\n2.wav,three\n')
    samples = read(home, tmp_path / "out")
    assert samples.count == 2
    assert samples.labels
    found = SampleSet.open(samples.path)
    assert [len(found[i]["audio"]) for i in range(2)] == [4000, 6000]
    assert found.labels is not None
    assert list(found.labels) == ["one, two", "three"]


def test_a_folder_without_a_table_has_clips_alone(tmp_path: Path) -> None:
    samples = read(folder(tmp_path / "clips"), tmp_path / "out")
    assert (samples.count, samples.labels) == (3, False)


def test_a_file_of_lines_names_clips_beside_it(tmp_path: Path) -> None:
    folder(tmp_path / "clips")
    path = tmp_path / "clips.jsonl"
    path.write_text("".join(json.dumps({"audio": f"clips/{n}.wav", "text": f"number {n}"}) + "\n" for n in range(3)))
    samples = read(path, tmp_path / "out")
    assert (samples.count, samples.labels) == (3, True)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ("file,text\nno.wav,hello\n", r"names no\.wav, which is not there"),
        ("file,text\n0.wav,\n", "empty transcript"),
        ("sound,text\n0.wav,hello\n", "names no file"),
        ("file,text\n", "names no clips"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(table: str, match: str, tmp_path: Path) -> None:
    home = folder(tmp_path / "clips")
    (home / "transcripts.csv").write_text(table)
    with pytest.raises(InvalidInput, match=match):
        read(home, tmp_path / "out")


def test_a_folder_without_clips_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"no \.wav files"):
        read(tmp_path / "empty", tmp_path / "out")
