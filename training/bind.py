"""Bind this folder's parent to the one package name it has outside ComfyUI: ``stepwise_grpo``.

ComfyUI loads the pack under a name of its own and never needs this file. The trainer, the tests and the developer's
commands do: inside the pack every import is relative, and ``nodes`` or ``training`` must never be top-level names,
because ComfyUI has a ``nodes`` module itself.
"""

import sys
import types
from pathlib import Path

NAME = "stepwise_grpo"
ROOT = Path(__file__).resolve().parent.parent


def bind() -> Path:
    """Make ``import stepwise_grpo.training...`` work from anywhere; returns the pack's folder. Safe to call twice."""
    if NAME not in sys.modules:
        package = types.ModuleType(NAME)
        package.__path__ = [str(ROOT)]
        sys.modules[NAME] = package
    return ROOT
