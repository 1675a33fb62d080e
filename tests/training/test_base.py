"""The base model as data: what tells two files apart, and which of them is named when one has changed."""

import json
import struct
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("where, differs", [(0, True), (1, False), (2, True), (-1, True)], ids=["in the header", "in the middle", "in the last MiB", "in the last byte"])
def test_finetunes_with_equal_headers_and_sizes_differ_at_their_end(where, differs, tmp_path):
    """The middle is not read: a description must stay cheap for files of many gigabytes."""
    one, other = bytearray(4 * MIB), bytearray(4 * MIB)
    if where:
        other[-1 if where == -1 else (2 * MIB if where == 1 else 4 * MIB - 1000)] = 1
    paths = [safetensors_like(tmp_path / f"{i}.safetensors", {"a": 2 if i and not where else 1}, bytes(body)) for i, body in enumerate((one, other))]
    assert (quick_digest(paths[0]) != quick_digest(paths[1])) == differs


@pytest.mark.parametrize("position, differs", [(0, True), (MIB + 1000, False), (3 * MIB - 1, True)])
def test_a_file_that_is_no_safetensors_is_known_by_its_first_and_last_mib(position, differs, tmp_path):
    body = bytearray(b"\xff" * 3 * MIB)
    (tmp_path / "a.ckpt").write_bytes(body)
    body[position] = 1
    (tmp_path / "b.ckpt").write_bytes(body)
    assert (quick_digest(tmp_path / "a.ckpt") != quick_digest(tmp_path / "b.ckpt")) == differs


def test_files_shorter_than_a_mib_are_read_whole(tmp_path):
    (tmp_path / "a.ckpt").write_bytes(b"\xff" * 99 + b"\xfe")
    (tmp_path / "b.ckpt").write_bytes(b"\xff" * 100)
    (tmp_path / "c.ckpt").write_bytes(b"")
    assert len({quick_digest(tmp_path / f"{name}.ckpt") for name in "abc"}) == 3


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
