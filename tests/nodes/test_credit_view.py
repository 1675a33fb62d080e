"""The Credit Visualizer's stored view: what it holds, how large it gets, and what happens when the disk refuses."""

import io
import json
import os

import numpy
import pytest
import torch
from PIL import Image

from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.trajectory import Credit

pytestmark = pytest.mark.usefixtures("comfy")
TIMES = (1.0, 0.75, 0.5, 0.0)


def credit_of(groups=2, size=3, tile=(8, 6), seed=0, times=TIMES, **changes):
    """Made-up credit; every thumbnail has a colour of its own: red by state, green by row."""
    steps, rows = len(times) - 1, groups * size
    rewards = torch.rand(steps + 1, rows, generator=torch.Generator().manual_seed(seed))
    thumbnails = torch.zeros(steps + 1, rows, *tile, 3)
    thumbnails[..., 0] = torch.linspace(0, 1, steps + 1)[:, None, None, None]
    thumbnails[..., 1] = torch.linspace(0, 1, rows)[None, :, None, None]
    values = {"rewards": rewards, "gains": rewards.diff(dim=0), "advantages": torch.ones(steps, rows), "thumbnails": thumbnails}
    values |= {"schedule": Schedule(times, "flow", 0.7), "group_size": size, "texts": tuple(f"prompt {i}" for i in range(groups)), "scheme": "centred"}
    values |= {"reward": {"reward": "placement"}, "zero_variance_groups": 0, "evaluations": 1, "seconds": {}}
    return Credit(**{**values, **changes})


@pytest.fixture
def view():
    from stepwise_grpo.nodes import credit_view

    return credit_view


def read(view, output, id):
    return json.loads((view.folder_of(output) / id / "view.json").read_text("utf-8"))


def test_the_view_holds_the_credit_and_one_picture_a_group(view, tmp_path):
    credit = credit_of()
    id = view.store(credit, tmp_path)
    found = read(view, tmp_path, id)
    assert len(id) == 16 and {*id} <= {*"0123456789abcdef"}
    assert torch.tensor(found["rewards"]).allclose(credit.rewards) and torch.tensor(found["advantages"]).equal(credit.advantages)
    assert {key: found[key] for key in ("format", "texts", "group_size", "times", "stochastic", "scheme", "law", "eta", "reward", "thumbnails")} == {
        "format": 1, "texts": ["prompt 0", "prompt 1"], "group_size": 3, "times": [1.0, 0.75, 0.5, 0.0], "stochastic": sorted(credit.schedule.stochastic),
        "scheme": "centred", "law": "flow", "eta": 0.7, "reward": "placement", "thumbnails": {"width": 6, "height": 8},
    }  # fmt: skip
    assert sorted(path.name for path in (view.folder_of(tmp_path) / id).iterdir()) == ["group_000.jpg", "group_001.jpg", "view.json"]


def test_a_tile_lies_in_the_row_of_its_member_and_the_column_of_its_state(view, tmp_path):
    id = view.store(credit_of(tile=(16, 16)), tmp_path)
    picture = numpy.asarray(Image.open(view.folder_of(tmp_path) / id / "group_001.jpg")) / 255
    assert picture.shape == (3 * 16, 4 * 16, 3)
    for member in range(3):
        for state in range(4):
            red, green, _ = picture[member * 16 + 8, state * 16 + 8]
            assert red == pytest.approx(state / 3, abs=0.04) and green == pytest.approx((3 + member) / 5, abs=0.04)


def test_states_nobody_looked_at_are_null_and_a_view_may_have_no_pictures(view, tmp_path):
    rewards = torch.full((4, 6), float("nan"))
    rewards[-1] = 0.5
    found = read(view, tmp_path, view.store(credit_of(rewards=rewards, gains=rewards.diff(dim=0), thumbnails=None), tmp_path))
    assert found["rewards"][0] == [None] * 6 and found["rewards"][-1] == [0.5] * 6 and found["thumbnails"] is None


def test_the_same_credit_is_the_same_view_and_anything_else_another(view, tmp_path):
    first = view.store(credit_of(), tmp_path)
    assert view.store(credit_of(), tmp_path) == first
    darker = credit_of().thumbnails * 0.5
    others = [view.store(changed, tmp_path) for changed in (credit_of(seed=1), credit_of(thumbnails=darker), credit_of(scheme="paper"))]
    assert len({first, *others}) == 4


@pytest.mark.parametrize("groups, size, steps, tile", [(1, 24, 40, (96, 96)), (1, 64, 100, (96, 96)), (1, 2, 300, (96, 40)), (1, 300, 3, (96, 96))])
def test_no_picture_gets_too_large(view, groups, size, steps, tile):
    times = tuple(1 - k / steps for k in range(steps + 1))
    credit = credit_of(groups, size, (1, 1), times=times, thumbnails=torch.zeros(1, 1, 1, 1, 3).expand(steps + 1, groups * size, *tile, 3))
    width, height = view.tile_size(credit)
    assert width * (steps + 1) <= view.SIDE and height * size <= view.SIDE and width * (steps + 1) * height * size <= view.AREA
    assert (width, height) == (96, 96) or width < tile[1]
    assert width / height == pytest.approx(tile[1] / tile[0], rel=0.1)


def test_tiles_that_are_made_smaller_keep_their_colours(view, tmp_path, monkeypatch):
    monkeypatch.setattr(view, "SIDE", 40)
    id = view.store(credit_of(tile=(32, 32)), tmp_path)
    picture = Image.open(view.folder_of(tmp_path) / id / "group_000.jpg")
    assert read(view, tmp_path, id)["thumbnails"] == {"width": 10, "height": 10} and picture.size == (40, 30)
    assert picture.getpixel((35, 5))[0] > 240 > 15 > picture.getpixel((5, 5))[0]


def test_only_the_newest_views_are_kept_and_showing_one_again_makes_it_new(view, tmp_path, monkeypatch):
    monkeypatch.setattr(view, "KEPT", 3)
    ids = []
    for seed in range(3):
        ids.append(view.store(credit_of(seed=seed), tmp_path))
        os.utime(view.folder_of(tmp_path) / ids[-1], ns=(seed, seed))
    view.store(credit_of(seed=0), tmp_path)
    newest = view.store(credit_of(seed=9), tmp_path)
    assert {path.name for path in view.folder_of(tmp_path).iterdir()} == {ids[0], ids[2], newest}


def full_disk(monkeypatch, view, after):
    """Writing fails after so many files, as on a full disk."""
    from stepwise_grpo.training import job

    written = []

    def write(path, data):
        written.append(path)
        if len(written) > after:
            raise OSError(28, "No space left on device")
        job.write_whole(path, data)

    monkeypatch.setattr(view, "write_whole", write)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_full_disk_leaves_no_half_view_and_does_not_fail_the_node(view, tmp_path, monkeypatch, after):
    import folder_paths

    from stepwise_grpo.nodes.credit import shown

    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    full_disk(monkeypatch, view, after)
    found = shown(credit_of())
    assert found["stepwise_grpo_credit"] == []
    assert "No space left on device" in found["text"][0] and "IMAGE output is complete" in found["text"][0] and "Run again" in found["text"][0]
    folder = view.folder_of(tmp_path)
    assert not folder.exists() or not list(folder.iterdir())


def test_the_node_tells_the_id_and_gives_the_figure(view, tmp_path, monkeypatch):
    import folder_paths

    from stepwise_grpo.nodes.credit import CreditVisualizer

    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    output = CreditVisualizer.execute(credit_of())
    assert output.ui == {"stepwise_grpo_credit": [view.store(credit_of(), tmp_path)]}
    assert output.result[0].shape[0] == 1 and output.result[0].shape[-1] == 3


def test_a_jpg_of_the_tiles_can_be_read(view):
    picture = Image.open(io.BytesIO(view.sheet(torch.zeros(2, 3, 4, 5, 3, dtype=torch.uint8))))
    assert picture.format == "JPEG" and picture.size == (10, 12)
