"""The base model as data: what tells two files apart, and which of them is named when one has changed."""

import hashlib
import json
import struct
from pathlib import Path

import pytest

from stepwise_grpo.training import base
from stepwise_grpo.training.base import DEMO, Unfit, check_same, describe, describe_lora, quick_digest, refuse_gguf

MIB = 2**20


def safetensors_like(path: Path, header: dict, body: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


@pytest.fixture
def files(tmp_path) -> dict[tuple[str, str], Path]:
    """A model and two LoRAs, by kind and name."""
    return {
        ("diffusion_models", "m.safetensors"): safetensors_like(tmp_path / "m.safetensors", {"a": 1}, bytes(3 * MIB)),
        ("loras", "one.safetensors"): safetensors_like(tmp_path / "one.safetensors", {"b": 1}, bytes(10)),
        ("loras", "two.safetensors"): safetensors_like(tmp_path / "two.safetensors", {"c": 1}, bytes(10)),
    }


def find_in(files):
    return lambda kind, name: None if (kind, name) not in files else str(files[kind, name])


def stacked(files) -> dict:
    base = describe("diffusion_models", "m.safetensors", files["diffusion_models", "m.safetensors"], "fp8_e5m2")
    return {**base, "loras": [describe_lora(name, files["loras", name], strength) for name, strength in (("one.safetensors", 1), ("two.safetensors", 0.5))]}


def test_a_description_tells_the_file_and_its_precision_only_where_it_was_chosen(files):
    path = files["diffusion_models", "m.safetensors"]
    plain = describe("diffusion_models", "m.safetensors", path)
    assert set(plain) == {"kind", "name", "size", "sha256"} and plain["size"] == path.stat().st_size
    assert describe("diffusion_models", "m.safetensors", path, "default") == plain
    assert describe("diffusion_models", "m.safetensors", path, "fp8_e5m2") == {**plain, "weight_dtype": "fp8_e5m2"}


@pytest.mark.parametrize("size", [1000, 5 * MIB, 64 * MIB, 64 * MIB + 5, 200 * MIB])
@pytest.mark.parametrize("where", ["start", "last byte", "a tenth of it"])
def test_another_file_of_one_size_is_noticed(where, size, tmp_path):
    """A finetune changes most of a file, a repaired header the start, another ending the last byte."""
    body = bytearray(size)
    (tmp_path / "a.safetensors").write_bytes(body)
    first, last = {"start": (0, 1), "last byte": (size - 1, size), "a tenth of it": (size * 4 // 10, size // 2)}[where]
    body[first:last] = b"\x01" * (last - first)
    (tmp_path / "b.safetensors").write_bytes(body)
    assert quick_digest(tmp_path / "a.safetensors") != quick_digest(tmp_path / "b.safetensors")


def test_a_digest_of_a_large_file_reads_little(tmp_path, monkeypatch):
    (tmp_path / "large.safetensors").write_bytes(bytes(200 * MIB))
    seen, whole = [], hashlib.sha256
    monkeypatch.setattr(base.hashlib, "sha256", lambda: Counting(whole(), seen))
    quick_digest(tmp_path / "large.safetensors")
    assert sum(seen) == 2 * MIB + 64 * 64 * 1024


class Counting:
    def __init__(self, digest, seen):
        self._digest, self._seen = digest, seen

    def update(self, data):
        self._seen.append(len(data))
        self._digest.update(data)

    def hexdigest(self):
        return self._digest.hexdigest()


def test_nothing_changed_is_no_error(files):
    check_same(stacked(files), find_in(files))
    check_same(DEMO, find_in({}))
    check_same({**DEMO, "loras": stacked(files)["loras"]}, find_in(files))


@pytest.mark.parametrize(
    "key, what",
    [
        (("diffusion_models", "m.safetensors"), "the base model 'm.safetensors'"),
        (("loras", "one.safetensors"), "the LoRA 'one.safetensors' below the trained one"),
        (("loras", "two.safetensors"), "the LoRA 'two.safetensors' below the trained one"),
    ],
)
def test_the_file_that_changed_or_is_gone_is_named(key, what, files):
    base, path = stacked(files), files[key]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x01")
    with pytest.raises(ValueError, match=f"^{what} has changed since the run was started"):
        check_same(base, find_in(files))
    path.write_bytes(data)
    del files[key]
    with pytest.raises(ValueError, match=f"^{what} is no longer in ComfyUI's '{key[0]}' folders; put it back or start a new run"):
        check_same(base, find_in(files))


@pytest.mark.parametrize("name, start", [("model.gguf", b"\0\0\0\0"), ("model.GGUF", b""), ("model.safetensors", b"GGUF\3\0\0\0")])
def test_a_gguf_file_is_refused_whatever_its_name(name, start, tmp_path):
    (tmp_path / name).write_bytes(start)
    with pytest.raises(Unfit, match=f"'{name}' is a GGUF file.*take the model's .safetensors file"):
        refuse_gguf(name, tmp_path / name)


def test_other_files_are_no_gguf(files):
    for path in files.values():
        refuse_gguf(path.name, path)
