"""Which layers get a LoRA: by preset, or by a pattern that takes its place."""

from dataclasses import replace

import pytest
from torch import nn

from stepwise_grpo.tests.analytic import JOB, packed, plan
from stepwise_grpo.training import lora
from stepwise_grpo.training.base import Unfit
from stepwise_grpo.training.config import to_json
from stepwise_grpo.training.job import RunFolder
from stepwise_grpo.training.lora import check_pattern
from stepwise_grpo.training.run import Trainer, settle


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({"qkv": nn.Linear(4, 12), "proj": nn.Linear(4, 4)})
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.ModuleList([nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)])


@pytest.fixture
def network() -> nn.Module:
    return nn.ModuleDict({"blocks": nn.ModuleList([Block(), Block()]), "time": nn.Linear(4, 4)})


def test_a_pattern_takes_the_presets_place(network):
    assert lora.target_layers(network, "attention", r"blocks\.1\.(attn\.proj|mlp\.\d)") == ["blocks.1.attn.proj", "blocks.1.mlp.0", "blocks.1.mlp.2"]
    assert lora.target_layers(network, "attention", "time") == ["time"]
    assert len(lora.target_layers(network, "attention")) == 4


def test_a_pattern_must_match_the_whole_path(network):
    with pytest.raises(lora.Unfit, match="target_pattern 'attn' matches no layer of this model"):
        lora.target_layers(network, "all", "attn")
    with pytest.raises(lora.Unfit, match="matches no layer"):
        lora.target_layers(network, "all", r"blocks\.1\.attn\.pro")


def test_the_error_shows_layers_that_could_be_meant(network):
    with pytest.raises(lora.Unfit, match=r"such as blocks\.0\.attn\.proj, blocks\.\S+, blocks\.\S+$"):
        lora.target_layers(network, "all", "nothing")


def test_what_is_not_linear_gets_none(network):
    with pytest.raises(lora.Unfit, match=r"target_pattern '.*norm' matches no linear layer, only blocks.0.norm, blocks.1.norm of this model"):
        lora.target_layers(network, "all", ".*norm")


def test_what_is_no_regular_expression_is_refused_by_the_widgets_name(network):
    with pytest.raises(lora.Unfit, match=r"target_pattern 'blocks\(' is not a regular expression"):
        lora.target_layers(network, "all", "blocks(")


def test_the_lora_goes_where_the_pattern_says(network):
    lora.inject(network, replace(JOB, pattern=r".*mlp\.0"))
    assert {name.split(".lora_")[0] for name in lora.tensors(network)} == {"blocks.0.mlp.0", "blocks.1.mlp.0"}


def test_an_iteration_whose_settings_do_not_fit_the_model_is_rejected_at_once(tmp_path):
    """Trying again would never help, and the node would wait for ever."""
    from stepwise_grpo.tests.analytic import AnalyticPolicy

    def refuses(job):
        raise lora.Unfit("target_pattern 'x' matches no layer of this model")

    folder = RunFolder(tmp_path, "r")
    folder.agree_on_job(to_json(JOB))
    id = folder.queue(packed(AnalyticPolicy(), plan()))
    settle(Trainer(refuses), folder, folder.waiting()[0])
    assert folder.fate(id) == {"rejected": "target_pattern 'x' matches no layer of this model"}  # its name may be used again
    assert not folder.waiting()


@pytest.mark.parametrize("pattern", [r"(\w+\.?)+X", r"(a+)+$", r"(\w|\d)*X", r"((ab)*c)+", r"(?:x+y){2,}", r"([ab]+c)*"])
def test_a_pattern_that_may_never_end_is_refused(pattern):
    with pytest.raises(Unfit, match="can take for ever"):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern", [r"joint_blocks\.\d+\.x_block\.attn\..*", r"(x|y)_block\..*", r"(.*\.)?attn\..*", r"(img_|txt_)?mlp.*", r"[(+]+a", r"\(+a\)+", r"(ab)+"])
def test_a_pattern_without_nested_repeats_is_taken(pattern):
    check_pattern(pattern)
