"""The demo model: what it reads, what it measures, and that ComfyUI's stock loader and nodes work with its files."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stepwise_grpo.demo.captions import SLOTS, Caption, all_captions, code, held_out, parse
from stepwise_grpo.demo.codec import load_codec
from stepwise_grpo.demo.measure import measure
from stepwise_grpo.demo.recipe.pictures import asked_places, draw, slot_indices
from stepwise_grpo.demo.words import WIDTH, WORDS, encode, word_vectors
from stepwise_grpo.training.comfyui import prepare
from stepwise_grpo.training.rewards.placement import Placement

DEMO = Path(__file__).resolve().parents[2] / "demo"
CAPTIONS = all_captions()[::5]
ROWS = torch.tensor([slot_indices(caption) for caption in CAPTIONS])
PROMPTS = [caption.text() for caption in CAPTIONS]
HELD_OUT = json.loads((DEMO / "heldout.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def stock(comfyui_folder: Path) -> Iterator[Any]:
    """The three demo objects, and ComfyUI's modules that the tests call, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        import comfy.options

        comfy.options.enable_args_parsing()
        import comfy.sd

        from stepwise_grpo.demo import comfy_model
        from stepwise_grpo.demo.recipe.sampling import Studio, seeded_noise

        yield SimpleNamespace(sd=comfy.sd, files=comfy_model, studio=Studio(), noise=seeded_noise)


def test_every_caption_survives_being_written_and_read():
    captions = all_captions()
    assert [parse(caption.text()) for caption in captions] == captions
    assert [code(caption) for caption in captions] == list(range(len(captions)))


@pytest.mark.parametrize(
    "text, caption",
    [
        ("", Caption()),
        ("an oil painting of nothing", Caption()),
        ("RED CIRCLE!!", Caption(kind="circle", colour="red")),
        ("two big (blue:1.3) boxes in the middle", Caption("square", "blue", "big", "centre")),
        ("a black background and a tiny violet disc", Caption("circle", "purple", "small", None, "black")),
        ("a red circle on a green background", Caption("circle", "red")),
        ("on the right, crosses on gray", Caption("cross", None, None, "right", "grey")),
    ],
)
def test_any_text_is_read_forgivingly(text, caption):
    assert parse(text) == caption


def test_the_held_out_captions_hold_every_word_and_no_training_prompt():
    kept = [caption for caption in all_captions() if held_out(caption)]
    assert 100 <= len(kept) <= 120
    assert all({getattr(caption, slot) for caption in kept} == set(words) for slot, words in SLOTS.items())
    training = [parse(line) for line in (DEMO / "prompts.txt").read_text("utf-8").splitlines()]
    assert not any(held_out(caption) for caption in training)
    assert {caption.place for caption in training} == set(SLOTS["place"])
    assert all(held_out(parse(prompt)) for prompt in HELD_OUT["prompts"])
    assert len(HELD_OUT["prompts"]) == len(HELD_OUT["seeds"]) == len(set(HELD_OUT["seeds"]))


def test_word_vectors_are_orthogonal_and_silence_is_zero():
    vectors = word_vectors()
    assert torch.equal(vectors[:-1] @ vectors[:-1].T, WIDTH * torch.eye(len(WORDS)))
    cond, pooled = encode("")
    assert cond.shape == (1, len(SLOTS), WIDTH) and pooled.shape == (1, WIDTH)
    assert not cond.any() and not pooled.any()


@pytest.mark.parametrize("through_codec", [False, True], ids=["drawn", "through the codec"])
def test_a_true_drawing_measures_right_in_everything(through_codec):
    pictures = draw(ROWS, asked_places(ROWS))
    if through_codec:
        codec = load_codec(DEMO / "weights" / "demo_codec.safetensors")
        pictures = codec.decode(codec.encode(pictures))
    found = measure(pictures, PROMPTS)
    for name in ("kind", "colour", "size", "place", "background", "whole", "shape_ok"):
        assert found[name].float().mean() > 0.99, name


@pytest.mark.parametrize("slot", SLOTS)
def test_each_measure_notices_the_wrong_word(slot):
    wrong = [Caption(**{**vars(caption), slot: _another(slot, getattr(caption, slot))}).text() for caption in CAPTIONS]
    found = measure(draw(ROWS, asked_places(ROWS)), wrong)
    assert not found[slot].any()
    assert all(found[other].all() for other in SLOTS if other != slot)


def _another(slot: str, word: str) -> str:
    words = SLOTS[slot]
    return words[(words.index(word) + 1) % len(words)]


def test_a_torn_shape_is_not_whole():
    centred = [i for i, caption in enumerate(CAPTIONS) if caption.place == "centre"]
    pictures = draw(ROWS[centred], asked_places(ROWS[centred]))
    torn = pictures.clone()
    torn[:, :64] = torch.roll(pictures[:, :64], 20, dims=2)  # the upper half goes 20 px to the right
    assert not measure(torn, [PROMPTS[i] for i in centred])["whole"].any()


def test_all_weights_together_are_small():
    assert sum(file.stat().st_size for file in (DEMO / "weights").iterdir()) <= 10 * 2**20


def test_decoding_is_quick_enough_for_every_preview():
    codec = load_codec(DEMO / "weights" / "demo_codec.safetensors")
    start = time.perf_counter()
    assert codec.decode(torch.zeros(320, 16, 16, 16)).shape == (320, 128, 128, 3)
    assert time.perf_counter() - start < 6  # 0.3 s on two quiet cores


def test_the_flow_file_opens_as_sd3_in_the_stock_loader(stock):
    model = stock.sd.load_diffusion_model(str(stock.files.FLOW_FILE))
    assert type(model.model).__name__ == "SD3"
    sampling = model.get_model_object("model_sampling")
    assert float(sampling.sigma_max) == pytest.approx(1.0)
    assert sampling.shift == 3.0
    stored = stock.studio.model.model.diffusion_model.state_dict()
    assert all(torch.isfinite(value).all() for value in stored.values())


def test_clip_is_comfyuis_own_and_says_what_words_py_says(stock):
    clip = stock.studio.clip
    assert isinstance(clip, stock.sd.CLIP)
    (cond, extra), *rest = clip.clone().encode_from_tokens_scheduled(clip.tokenize(PROMPTS[0]))
    expected, pooled = encode(PROMPTS[0])
    assert not rest
    assert torch.equal(cond, expected) and torch.equal(extra["pooled_output"], pooled)


def test_the_vae_is_comfyuis_own_and_inverts_itself(stock):
    vae = stock.studio.vae
    pictures = draw(ROWS[:16], asked_places(ROWS[:16]))
    latents = vae.encode(pictures)
    assert isinstance(vae, stock.sd.VAE)
    assert latents.shape == (16, 16, 16, 16)
    assert (vae.decode(latents) - pictures).square().mean() < 2e-3  # 27 dB
    tiled = vae.decode_tiled(latents[:1], tile_x=8, tile_y=8, overlap=2)
    assert tiled.shape == (1, 128, 128, 3)


def test_a_lora_from_the_stock_loader_changes_the_model_and_leaves_the_base_alone(stock, tmp_path):
    torch.manual_seed(0)
    name = "diffusion_model.joint_blocks.0.x_block.attn.qkv"
    width = 128
    file = tmp_path / "lora é.safetensors"
    save_file({f"{name}.lora_A.weight": torch.randn(4, width), f"{name}.lora_B.weight": torch.randn(3 * width, 4), f"{name}.alpha": torch.tensor(4.0)}, file)
    import comfy.utils

    model, clip = stock.sd.load_lora_for_models(stock.studio.model, stock.studio.clip, comfy.utils.load_torch_file(str(file)), 1.0, 1.0)
    assert list(model.patches) == [f"{name}.weight"]
    assert isinstance(clip, stock.sd.CLIP) and not stock.studio.model.patches


def test_held_out_captions_are_drawn_cleanly_and_placed_right_about_half_the_time(stock):
    """A sample of what `python demo/recipe measure` reports in full, with room for chance."""
    prompts, seeds = HELD_OUT["prompts"], HELD_OUT["seeds"]
    pictures = stock.studio.pictures(prompts, stock.noise(seeds), cfg=HELD_OUT["cfg"], steps=HELD_OUT["steps"])
    found = measure(pictures, prompts)
    rates = {name: found[name].float().mean().item() for name in ("kind", "colour", "background", "whole", "place", "shape_ok")}
    assert rates["background"] > 0.97 and rates["colour"] > 0.95
    assert rates["shape_ok"] > 0.75, rates
    assert 0.33 < rates["place"] < 0.62, rates
    assert 0.42 < Placement().score(pictures, prompts).mean() < 0.65
