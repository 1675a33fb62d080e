"""Which prompts an iteration uses. Standard library only."""

import random
import re


def prompt_lines(text: str) -> list[str]:
    """One prompt a line; blank lines and lines that start with # are left out. None left is a ``ValueError``."""
    lines = [line.strip() for line in re.split(r"\r?\n|\r", text)]  # not at the other marks that Unicode counts as line ends
    prompts = [line for line in lines if line and not line.startswith("#")]
    if not prompts:
        raise ValueError("the prompt list is empty: write one prompt a line (lines that start with # do not count)")
    return prompts


def choose(count: int, take: int, iteration: int, seed: int) -> list[int]:
    """Indices of ``take`` different prompts out of ``count`` for this iteration: shuffled passes, a fresh order each.

    What is left at the end of a pass and is fewer than ``take`` is left out of that pass.
    """
    take = min(take, count)
    if take < 1:
        raise ValueError(f"at least 1 prompt is needed in an iteration; got {take}")
    in_pass = count // take
    order = list(range(count))
    random.Random(f"{seed}/{iteration // in_pass}").shuffle(order)
    start = iteration % in_pass * take
    return order[start : start + take]
