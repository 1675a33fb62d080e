"""The table of recommended settings: the right row for a model, no value without a source, published values as published."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from stepwise_grpo.training.config import Job, UpdateSettings
from stepwise_grpo.training.core.transitions import resolve_eta
from stepwise_grpo.training.defaults import (
    CARD,
    FEW_STEP,
    GUIDANCE_DISTILLED,
    OURS,
    ROWS,
    SOURCED,
    TRUE_CFG,
    alpha_for,
    by_source,
    describe,
    find,
    named,
)
from stepwise_grpo.training.lora import TARGETS

ROOT = Path(__file__).resolve().parent.parent.parent
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@pytest.mark.parametrize(
    "class_name, file, embedded, name",
    [
        ("Demo", "", False, "Demo Model"),
        ("SD3", "sd3.5_medium.safetensors", False, "SD3, SD3.5"),
        ("SD3", "sd3.5_large_turbo.safetensors", False, "SD3.5 Large Turbo"),
        ("SD3", "turbo/sd3.5_medium.safetensors", False, "SD3, SD3.5"),
        ("Flux", "flux1-dev-fp8.safetensors", True, "FLUX.1 dev"),
        ("Flux", "flux1-krea-dev.safetensors", True, "FLUX.1 dev"),
        ("Flux", "flux1-dev-turbo-alpha.safetensors", True, "FLUX.1 turbo"),
        ("Flux", "Hyper-FLUX.1-dev-8steps.safetensors", True, "FLUX.1 turbo"),
        ("Flux", "hyperreal_2000steps.safetensors", True, "FLUX.1 dev"),
        ("FluxSchnell", "flux1-schnell.safetensors", False, "FLUX.1 schnell"),
        ("FluxSchnell", "renamed.safetensors", False, "FLUX.1 schnell"),
        ("Flux2", "flux2_dev_fp8mixed.safetensors", True, "FLUX.2 dev"),
        ("Flux2", "flux-2-klein-4b.safetensors", False, "FLUX.2 klein"),
        ("Flux2", "flux-2-klein-base-4b.safetensors", False, "FLUX.2 klein base"),
        ("ZImage", "z_image_turbo_bf16.safetensors", False, "Z-Image Turbo"),
        ("ZImage", "z_image_bf16.safetensors", False, "Z-Image"),
        ("ZImage", "z_image_de_turbo_v1_bf16.safetensors", False, "Z-Image"),
        ("Lumina2", "lumina_2.safetensors", False, "Lumina-Image 2.0"),
        ("QwenImage", "qwen_image_fp8_e4m3fn.safetensors", False, "Qwen-Image"),
        ("QwenImage", "qwen\\Qwen-Image-Lightning-4steps-V1.0.safetensors", False, "Qwen-Image Lightning"),
        ("HiDream", "hidream_i1_full_fp16.safetensors", False, "HiDream-I1 Full"),
        ("HiDream", "hidream_i1_dev_bf16.safetensors", False, "HiDream-I1 Dev"),
        ("HiDream", "hidream_i1_fast_bf16.safetensors", False, "HiDream-I1 Fast"),
        ("WAN21_T2V", "wan2.1_t2v_1.3B_fp16.safetensors", False, "Wan 2.1"),
        ("WAN21_T2V", "Wan2.1-T2V-14B-StepDistill-CfgDistill.safetensors", False, "Wan 2.1 few-step"),
        ("HunyuanVideo", "hunyuan_video_720_cfgdistill_fp8_e4m3fn.safetensors", True, "HunyuanVideo"),
        ("HunyuanImage21", "hunyuanimage2.1_bf16.safetensors", False, "HunyuanImage 2.1"),
        ("HunyuanImage21", "hunyuanimage2.1_distilled_bf16.safetensors", True, "HunyuanImage 2.1 distilled"),
        ("Kandinsky5", "kandinsky5lite_t2v_nocfg_5s.safetensors", False, "Kandinsky 5 video nocfg"),
        ("Kandinsky5", "kandinsky5lite_t2v_distilled16steps_5s.safetensors", False, "Kandinsky 5 video distilled"),
        ("Omnigen2", "omnigen2_fp16.safetensors", False, "OmniGen 2"),
        ("AuraFlow", "aura_flow_0.3.safetensors", False, "AuraFlow"),
        ("AuraFlow", "aura_flow_lightning.safetensors", False, "any other few-step model"),
        ("Unheard", "of.safetensors", False, "any other model"),
        ("Unheard", "of.safetensors", True, "any other model with a guidance input"),
        ("Unheard", "of_turbo.safetensors", True, "any other few-step model"),
    ],
)
def test_the_row_is_told_by_class_file_name_and_guidance_input(class_name, file, embedded, name):
    assert find(class_name, file, embedded).name == name


def test_a_name_finds_its_row_and_no_name_the_general_one():
    assert [named(row.name) for row in ROWS] == list(ROWS)
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert named("") is named("a row of an older version") is ROWS[-1]


@each_row
def test_every_value_has_a_source_and_nothing_else_has(row):
    assert set(row.sources) == set(SOURCED) < {field.name for field in fields(row)}
    assert all(row.sources.values())
    told = [phrase for phrases in by_source(row).values() for phrase in phrases]
    assert len(told) == len(SOURCED) - (row.guidance is None) - (row.shift is None)
    assert all(phrase in describe(row) for phrase in told)


@each_row
def test_the_settings_accept_every_row(row):
    Job(base={"kind": "demo"}, targets=row.targets, rank=row.rank, alpha=row.alpha)
    UpdateSettings(learning_rate=row.learning_rate, clip=row.clip, beta=row.beta)
    assert row.targets in TARGETS
    assert resolve_eta(row.law, row.eta) == row.eta > 0
    assert row.group_size >= 2 and 3 <= row.steps <= row.view_steps
    assert all(side % 16 == 0 for side in row.size)


@each_row
def test_kinds_keep_their_rules(row):
    if row.kind == FEW_STEP:
        assert row.cfg == 1 and row.steps == row.view_steps
    if row.kind == GUIDANCE_DISTILLED:
        assert row.cfg == 1
    if row.kind == TRUE_CFG:
        assert row.guidance is None
    if not row.classes:
        assert set(row.sources.values()) <= {OURS, CARD, "ComfyUI's own", "ours, by the latent's size"}  # nobody published for a model unheard of


# What the published files say, each value with the configuration it stands in.
PUBLISHED = {
    "SD3, SD3.5": {"steps": 10, "view_steps": 40, "cfg": 4.5, "law": "ddim", "eta": 0.7, "clip": 1e-4, "beta": 0.04 / 10, "rank": 32, "alpha": 64, "learning_rate": 1e-4, "group_size": 8},
    "FLUX.1 dev": {"steps": 6, "view_steps": 28, "guidance": 3.5, "law": "flow", "eta": 0.9, "clip": 1e-4, "beta": 0, "rank": 64, "alpha": 128, "targets": "attention_mlp"},
    "Qwen-Image": {"steps": 10, "view_steps": 50, "cfg": 4, "clip": 1e-4, "beta": 0, "rank": 64, "alpha": 128},
    "Wan 2.1": {"steps": 20, "view_steps": 50, "cfg": 4.5, "law": "flow", "eta": 0.7, "clip": 1e-3, "beta": 0.004 / 20, "learning_rate": 1e-4, "group_size": 4, "size": (416, 240)},
    "FLUX.2 klein base": {"steps": 20, "cfg": 1, "law": "precise", "eta": 1.5, "rank": 16, "alpha": 16, "learning_rate": 8e-5, "beta": 0, "group_size": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes_are_given_as_published(name):
    row = named(name)
    assert {key: getattr(row, key) for key in PUBLISHED[name]} == PUBLISHED[name]
    assert not {row.sources[key] for key in PUBLISHED[name]} & {OURS, CARD}


def test_the_demos_row_is_what_the_first_workflow_says():
    workflow = json.loads((ROOT / "workflows" / "first_loop.json").read_text("utf-8"))
    widgets = {node["type"].removeprefix("StepwiseGRPO_"): node.get("widgets_values") for node in workflow["nodes"]}
    row = find("Demo")
    assert widgets["GRPOLoRATrainer"][1:8] == [row.learning_rate, row.clip, row.beta, 2, row.rank, row.alpha, row.targets]
    assert widgets["StepwiseSDESampler"][:4] == [row.group_size, row.cfg, row.law, -1] and row.eta == resolve_eta(row.law, -1)
    assert widgets["BasicScheduler"][1] == row.steps and widgets["EmptySD3LatentImage"][:2] == list(row.size)


def test_alpha_follows_the_rank():
    row = named("FLUX.1 dev")
    assert alpha_for(row, row.rank) == row.alpha
    assert alpha_for(row, 8) == 16
