"""Versions for the record: what a bug report needs."""

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """{"python": ..., "comfyui": ..., "torch": ...}."""
    import comfyui_version

    found = {"python": platform.python_version(), "comfyui": comfyui_version.__version__}
    for package in ("torch", "peft", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found
