"""Text as token ids: words, a vocabulary by frequency, sequences of one length."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")
_WORD = re.compile(r"[a-z0-9']+")


def words(text: str) -> list[str]:
    """Runs of letters, digits and apostrophes in lower case; HTML line breaks removed."""
    return _WORD.findall(text.replace("<br />", " ").lower())


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> tuple[str, ...]:
    """Padding, the unknown word, and the most frequent words; ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return (*SPECIAL, *ordered[: size - len(SPECIAL)])


def encode(texts: Iterable[Sequence[str]], vocabulary: Sequence[str]) -> list[np.ndarray]:
    """Token ids of each text; words outside the vocabulary become `UNKNOWN`."""
    ids = {word: i for i, word in enumerate(vocabulary)}
    return [np.array([ids.get(word, UNKNOWN) for word in text], np.int32) for text in texts]


def pad(sequences: Sequence[Sequence[int] | np.ndarray], length: int) -> np.ndarray:
    """The last `length` tokens of each sequence, shorter ones filled with 0 in front."""
    result = np.full((len(sequences), length), PADDING, np.int32)
    for row, tokens in zip(result, sequences, strict=True):
        kept = tokens[-length:]
        if len(kept):
            row[-len(kept) :] = kept
    return result
