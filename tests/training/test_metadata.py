"""What LoRA managers find in a version file and beside it."""

import io
import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from stepwise_grpo.tests.analytic import JOB, AnalyticPolicy, credit_for, plan, trajectory_of
from stepwise_grpo.training import lora
from stepwise_grpo.training.config import UpdateSettings, to_json
from stepwise_grpo.training.experience import UnreadableExperience, pack, unpack
from stepwise_grpo.training.job import RunFolder, digest_of
from stepwise_grpo.training.live_run import LiveRun
from stepwise_grpo.training.metadata import LETTERS, PROMPTS, metadata
from stepwise_grpo.training.picture import LONGER_SIDE, png, small_picture

FLUX = replace(JOB, base={"kind": "diffusion_models", "name": "sub\\flux1-dev.safetensors"})


def about(**more):
    return {"run": "été 1", "version": 12, "prompts": ["a red circle", "un café"], "model": "Flux", **more}


def test_a_manager_finds_title_base_model_and_prompts():
    found = metadata(FLUX, about())
    assert found["modelspec.sai_model_spec"] == "1.0.1" and found["modelspec.architecture"] == "flux-1-dev/lora"
    assert (found["ss_base_model_version"], found["ss_sd_model_name"], found["ss_output_name"]) == ("flux1", "flux1-dev.safetensors", "été 1_v000012")
    assert found["modelspec.title"] == "été 1 v12" and "flux1-dev.safetensors" in found["modelspec.description"]
    assert json.loads(found["ss_tag_frequency"]) == {"prompts": {"a red circle": 1, "un café": 1}}
    assert (found["ss_network_dim"], found["ss_network_alpha"]) == (str(JOB.rank), str(JOB.alpha))
    assert all(isinstance(value, str) for value in found.values())
    assert metadata(FLUX, about(ema=True))["modelspec.title"] == "été 1 v12 (averaged)"


def test_a_trigger_word_that_does_not_exist_is_not_claimed_and_no_date_changes_the_bytes():
    found = metadata(FLUX, about())
    assert not {"modelspec.trigger_phrase", "modelspec.date", "ss_training_started_at"} & set(found)


def test_an_unknown_architecture_has_its_classs_name_and_the_demo_model_no_file():
    assert metadata(JOB, about(model="Wonder3"))["modelspec.architecture"] == "Wonder3/lora"
    found = metadata(JOB, {})
    assert found["modelspec.architecture"] == "unknown/lora" and found["ss_sd_model_name"] == JOB.base["kind"]


def test_many_long_prompts_do_not_swell_the_header():
    found = json.loads(metadata(JOB, about(prompts=["", *(f"{i} " + "x" * 5000 for i in range(500))]))["ss_tag_frequency"])["prompts"]
    assert len(found) == PROMPTS - 1 and max(map(len, found)) == LETTERS


# the picture


def test_large_pictures_are_made_smaller_and_keep_their_proportions():
    assert small_picture(torch.rand(1024, 512, 3)).shape == (LONGER_SIDE, 256, 3)
    assert small_picture(torch.rand(2000, 1, 3)).shape == (LONGER_SIDE, 1, 3)
    image = torch.rand(8, 6, 3)
    small = small_picture(image)
    assert small.dtype == torch.uint8 and torch.equal(small, (image * 255).round().to(torch.uint8))
    assert torch.equal(small_picture(torch.tensor([[[-1.0, 0.5, 2.0]]])), torch.tensor([[[0, 128, 255]]], dtype=torch.uint8))


def test_the_picture_of_the_credit_is_the_best_finished_one():
    policy, the_plan = AnalyticPolicy(), plan()
    trajectory = trajectory_of(policy, the_plan)
    credit, finals = credit_for(policy, trajectory, the_plan)
    assert torch.equal(credit.picture, small_picture(finals[credit.rewards[-1].argmax()]))
    assert not torch.equal(credit.picture, small_picture(finals[credit.rewards[-1].argmin()]))


def test_uniform_schemes_which_preview_nothing_else_have_one_too():
    policy, the_plan = AnalyticPolicy(), plan("uniform")
    assert credit_for(policy, trajectory_of(policy, the_plan), the_plan)[0].picture.dtype == torch.uint8


def packed_with(picture) -> bytes:
    policy, the_plan = AnalyticPolicy(), plan()
    trajectory = trajectory_of(policy, the_plan)
    credit, _ = credit_for(policy, trajectory, the_plan)
    steady = dict.fromkeys(credit.seconds, 1.0)
    return pack(replace(trajectory, seconds=1.0), replace(credit, picture=picture, seconds=steady), JOB, UpdateSettings())


def test_the_experience_carries_it_and_its_id_stays_the_same(tmp_path):
    picture = small_picture(torch.rand(8, 6, 3, generator=torch.Generator().manual_seed(0)))
    assert len({digest_of(packed_with(picture)) for _ in range(5)}) == 1 != digest_of(packed_with(None))
    (tmp_path / "e.safetensors").write_bytes(packed_with(picture))
    assert torch.equal(unpack(tmp_path / "e.safetensors").picture, picture)
    (tmp_path / "e.safetensors").write_bytes(packed_with(None))
    assert unpack(tmp_path / "e.safetensors").picture is None


@pytest.mark.parametrize("picture", [torch.zeros(4, 4, 3), torch.zeros(4, 4, dtype=torch.uint8), torch.zeros(4, LONGER_SIDE + 1, 3, dtype=torch.uint8)], ids=["float", "flat", "large"])
def test_something_else_in_its_place_is_unreadable(picture, tmp_path):
    (tmp_path / "e.safetensors").write_bytes(packed_with(picture))
    with pytest.raises(UnreadableExperience, match="the picture has shape"):
        unpack(tmp_path / "e.safetensors")


@pytest.mark.parametrize("has_picture", [True, False])
def test_it_lies_beside_the_version_under_the_same_name(tmp_path, has_picture):
    picture = small_picture(torch.rand(8, 6, 3)) if has_picture else None
    folder = RunFolder(tmp_path, "r")
    folder.agree_on_job(to_json(JOB))
    id = folder.queue(packed_with(picture))
    LiveRun(folder, JOB, AnalyticPolicy()).train(folder.waiting()[0], id)
    assert sorted(path.name for path in folder.loras.iterdir()) == ["v000001.png", "v000001.safetensors"][not has_picture :]
    if has_picture:
        shown = Image.open(io.BytesIO((folder.loras / "v000001.png").read_bytes()))
        assert shown.size == (6, 8) and shown.tobytes() == picture.numpy().tobytes()
        assert png(picture) == png(picture)
    metadata = lora.metadata_of(folder.version_file(1).read_bytes())
    assert metadata["modelspec.architecture"] == "Analytic/lora" and "mean 0.5" in metadata["ss_tag_frequency"]
