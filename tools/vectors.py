"""``python dev.py vectors FILE``: check transition vectors against the laws of training/core/transitions.py.

FILE is a JSON list of {kind, noise_level, sigmas, step, x, v, x_next, mean, transition_std,
log_prob_mean_over_elements}; the std is that of the whole step. Exits 0 when everything agrees to 1e-4, 1 when not, 2 when
the file cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..training.core.transitions import LAWS, Transition, mean_log_density

LIMIT = 1e-4
KINDS = {"flow_sde": "flow", **{name: name for name in LAWS}}
NEEDED = ("kind", "noise_level", "sigmas", "step", "x", "v", "x_next", "mean", "transition_std", "log_prob_mean_over_elements")


@dataclass(frozen=True)
class Errors:
    """Largest relative errors of one vector. Infinite density error: a point gave a density, or a law with spread gave none."""

    mean: float
    std: float
    density: float


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """max |a - b| / max(max |b|, 1e-6) over one tensor."""
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6)).item()


def check(vector: dict[str, Any]) -> Errors:
    """One vector against our law, in float64."""
    law, x_next = law_of(vector)
    std = torch.tensor(vector["transition_std"], dtype=torch.float64).flatten().expand(len(x_next))
    mean = torch.tensor(vector["mean"], dtype=torch.float64)
    return Errors(
        relative_error(law.mean, mean), relative_error(law.std, std), _density_error(law, x_next, std, vector["log_prob_mean_over_elements"])
    )


def law_of(vector: dict[str, Any]) -> tuple[Transition, Tensor]:
    """Our law of a vector's step, and the state it scores. ``flow_sde`` has its first step floored to the next sigma, as in its own code."""
    x, v, x_next = (torch.tensor(vector[name], dtype=torch.float64) for name in ("x", "v", "x_next"))
    sigmas, step = vector["sigmas"], vector["step"]
    guard = sigmas[1] if vector["kind"] == "flow_sde" and step == 0 else sigmas[step]
    t, t_next, t_guard = (torch.full((len(x),), value, dtype=torch.float64) for value in (sigmas[step], sigmas[step + 1], guard))
    return LAWS[KINDS[vector["kind"]]].step(x, v, t, t_next, vector["noise_level"], t_guard), x_next


def _density_error(law: Transition, x_next: Tensor, std: Tensor, given: list[float] | None) -> float:
    if (std == 0).all():
        return 0.0 if _refuses(law, x_next) else float("inf")
    if given is None:
        return 0.0
    if not (law.std > 0).all():
        return float("inf")
    return relative_error(mean_log_density(law, x_next), torch.tensor(given, dtype=torch.float64))


def _refuses(law: Transition, x_next: Tensor) -> bool:
    try:
        mean_log_density(law, x_next)
    except ValueError:
        return True
    return False


def worst(vectors: Sequence[dict[str, Any]]) -> dict[str, tuple[int, Errors]]:
    """For each law: how many vectors, and the largest error of each kind."""
    found: dict[str, list[Errors]] = {}
    for vector in vectors:
        found.setdefault(KINDS[vector["kind"]], []).append(check(vector))
    return {law: (len(errors), Errors(*map(max, zip(*map(astuple, errors))))) for law, errors in found.items()}


def read(path: Path) -> list[dict[str, Any]]:
    """The vectors of a file, or a ``ValueError`` that says what is wrong with it."""
    try:
        vectors = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not isinstance(vectors, list) or not vectors:
        raise ValueError(f"{path} must hold a JSON list of vectors")
    for number, vector in enumerate(vectors):
        missing = [key for key in NEEDED if not isinstance(vector, dict) or key not in vector]
        if missing:
            raise ValueError(f"vector {number} of {path} lacks {', '.join(missing)}")
        if vector["kind"] not in KINDS:
            raise ValueError(f"vector {number} of {path} has the unknown kind {vector['kind']!r}; known: {', '.join(KINDS)}")
    return vectors


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py vectors", description="Check transition vectors against the laws.")
    parser.add_argument("file", type=Path, help="a JSON file in the format of tests/core/transition_vectors.json")
    path = parser.parse_args(arguments).file
    try:
        found = worst(read(path))
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        print(f"vectors: {error}", file=sys.stderr)
        return 2
    print(f"{'law':<10}{'vectors':>8}{'mean':>12}{'std':>12}{'mean log density':>20}")
    for law, (count, errors) in found.items():
        print(f"{law:<10}{count:>8}{errors.mean:>12.1e}{errors.std:>12.1e}{errors.density:>20.1e}")
    # Written so that NaN counts as wrong.
    right = all(error <= LIMIT for _, errors in found.values() for error in astuple(errors))
    print(f"all within {LIMIT:g}" if right else f"some errors are above {LIMIT:g}")
    return 0 if right else 1
