"""The base model of a run as data: which files, and whether they are still the same. Standard library only."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEMO = {"kind": "demo"}
LORA_KIND = "loras"  # ComfyUI's name for the folders of LoRA files
MIB = 2**20
SAMPLES = 64


class Unfit(ValueError):
    """A base model, or settings for it, with which a run can never be trained; the message says why and names the remedy."""


def describe(kind: str, name: str, path: Path, weight_dtype: str = "default") -> dict[str, Any]:
    """Kind and name of a file, its size in bytes and its digest: enough to notice another file under the same name."""
    # {"kind", "name", "size", "sha256"}, and "weight_dtype" unless it is "default"; "loras" lists describe_lora(...) where there are some
    return {"kind": kind, **describe_file(name, path), **({} if weight_dtype == "default" else {"weight_dtype": weight_dtype})}


def describe_lora(name: str, path: Path, strength: float) -> dict[str, Any]:
    """A LoRA that the graph has on the base model besides the trained one."""
    # {"name", "size", "sha256", "strength"}
    return {**describe_file(name, path), "strength": float(strength)}


def describe_file(name: str, path: Path) -> dict[str, Any]:
    """Name, size and digest of a file: enough to notice another one under the same name."""
    return {"name": name, "size": path.stat().st_size, "sha256": quick_digest(path)}


def quick_digest(path: Path) -> str:
    """sha256 of a whole file up to 64 MiB; of a larger one of its first and last MiB and 64 samples of 64 KiB between.

    Finetunes of one model have equal headers and sizes; what lies between tells them apart without reading 20 GB.
    """
    size, digest = path.stat().st_size, hashlib.sha256()
    with open(path, "rb") as file:
        if size <= 64 * MIB:
            digest.update(file.read())
            return digest.hexdigest()
        digest.update(file.read(MIB))
        for sample in range(1, SAMPLES + 1):
            file.seek(size * sample // (SAMPLES + 1))
            digest.update(file.read(64 * 1024))
        file.seek(size - MIB)
        digest.update(file.read())
    return digest.hexdigest()


def refuse_gguf(name: str, path: Path) -> None:
    """``Unfit`` for a GGUF file, whatever its name."""
    with open(path, "rb") as file:
        if path.suffix.lower() == ".gguf" or file.read(4) == b"GGUF":
            raise Unfit(f"{name!r} is a GGUF file, whose weights cannot be trained on; take the model's .safetensors file (fp8 is about as small)")


def check_same(base: dict[str, Any], find: Callable[[str, str], str | None]) -> None:
    """``ValueError`` unless every file that ``base`` describes is still the same. ``find(kind, name)``: the file's path or None."""
    if base["kind"] != "demo":
        check_file(f"the base model {base['name']!r}", base["kind"], base, find)
    for lora in base.get("loras", ()):
        check_file(f"the LoRA {lora['name']!r} below the trained one", LORA_KIND, lora, find)


def check_file(what: str, kind: str, described: dict[str, Any], find: Callable[[str, str], str | None]) -> None:
    """``ValueError`` unless the file ``described`` by ``describe_file`` is still the same."""
    path = find(kind, described["name"])
    if path is None or not Path(path).is_file():
        raise ValueError(f"{what} is no longer in ComfyUI's {kind!r} folders; put it back or start a new run")
    found = describe_file(described["name"], Path(path))
    if found != {key: described.get(key) for key in found}:
        raise ValueError(f"{what} has changed since the run was started (another size or content); put the old file back or start a new run")
