"""Make japanese_vowels.npz from the published files JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts.

    python examples/data/make.py FOLDER

FOLDER holds the two files, as timeseriesclassification.com and the PyPI package aeon (1.6.0, under
aeon/datasets/data/JapaneseVowels) have them. Numbers are kept as published: six decimals, here as whole millionths.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

SHA256 = {
    "train": "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
    "test": "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
}


def read(path: Path) -> tuple[list[np.ndarray], list[int]]:
    """Utterances of shape (frames, 12) and their speakers, 0 to 8."""
    utterances, speakers = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#@":
            *channels, speaker = line.split(":")
            utterances.append(np.array([[float(v) for v in channel.split(",")] for channel in channels]).T)
            speakers.append(int(speaker) - 1)
    return utterances, speakers


arrays = {}
for part, wanted in SHA256.items():
    path = Path(sys.argv[1]) / f"JapaneseVowels_{part.upper()}.ts"
    if hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
        sys.exit(f"{path} is not the published file (its SHA-256 sum differs)")
    utterances, speakers = read(path)
    millionths = np.rint(1e6 * np.concatenate(utterances)).astype(np.int32)
    arrays[f"{part}_values"] = np.ascontiguousarray(millionths.T)  # shape: (12, frames of all utterances)
    arrays[f"{part}_lengths"] = np.array([len(u) for u in utterances], dtype=np.uint8)
    arrays[f"{part}_speakers"] = np.array(speakers, dtype=np.uint8)
np.savez_compressed(Path(__file__).with_name("japanese_vowels.npz"), **arrays)
