"""The demo's text encoder: a fixed vector for each word it knows, one token for each slot of a caption.

There is nothing to train here. The vectors are rows of a Hadamard matrix: orthogonal, of unit variance, and the
same on every machine without a file.
"""

from dataclasses import astuple

import torch

from .captions import SLOTS, Caption, parse

WIDTH = 64  # C, size of a word vector and of the pooled vector
TOKENS = len(SLOTS)  # L
WORDS = tuple(word for known in SLOTS.values() for word in known)
UNSAID = len(WORDS)  # id of a slot nothing was said about; its vector is zero


def word_vectors() -> torch.Tensor:
    """One row for each word and a last one of zeros, float32: (len(WORDS) + 1, WIDTH)."""
    hadamard = torch.ones(1, 1)
    while hadamard.shape[0] < WIDTH:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    # Row 0 is constant; LayerNorm would erase it, so the words start at row 1.
    return torch.cat([hadamard[1 : len(WORDS) + 1], torch.zeros(1, WIDTH)])


def word_ids(caption: Caption) -> list[int]:
    """One id per slot, in the order of SLOTS."""
    return [UNSAID if word is None else WORDS.index(word) for word in astuple(caption)]


def pool(tokens: torch.Tensor) -> torch.Tensor:
    """(B, L, C) token vectors -> (B, C) pooled vector of about unit variance."""
    return tokens.sum(1) / TOKENS**0.5


def encode(text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The token vectors (1, L, C) of a text and their pooled vector (1, C). An empty text gives zeros: the unconditional."""
    cond = word_vectors()[word_ids(parse(text))][None]
    return cond, pool(cond)
