"""The placement reward on drawings whose shape lies where we put it."""

import time

import pytest
import torch

from stepwise_grpo.demo.captions import BACKGROUNDS, Caption, all_captions
from stepwise_grpo.demo.recipe.pictures import asked_places, draw, rgb, slot_indices
from stepwise_grpo.training.rewards.placement import Placement

CAPTIONS = all_captions()[::7]
ROWS = torch.tensor([slot_indices(caption) for caption in CAPTIONS])
PROMPTS = [caption.text() for caption in CAPTIONS]


def scores(pictures: torch.Tensor, prompts: list[str] = PROMPTS) -> torch.Tensor:
    return Placement().score(pictures, prompts)


def moved(dx: float, dy: float) -> torch.Tensor:
    """The captions' pictures with the shape off its place by (dx, dy) px."""
    return draw(ROWS, asked_places(ROWS) + torch.tensor([dx, dy]))


def test_a_shape_on_its_place_scores_one_whatever_its_kind_colour_size_and_background():
    assert scores(moved(0, 0)).min() > 0.99


def test_the_score_falls_smoothly_with_the_distance():
    rewards = [scores(moved(distance, 0)).mean().item() for distance in (4, 6, 9, 14, 20, 28)]
    assert rewards == sorted(rewards, reverse=True)
    assert rewards[2] == pytest.approx(0.75, abs=0.05)  # measured: what is taken off for a shape's own width leaves about 7 px free
    assert rewards[3] == pytest.approx(0.37, abs=0.05)
    assert rewards[-1] < 0.05


def test_every_direction_counts_the_same():
    inside = [i for i, caption in enumerate(CAPTIONS) if caption.place == "centre"]  # elsewhere the picture's edge cuts shapes off
    rewards = torch.stack([scores(moved(*offset))[inside] for offset in ((9, 0), (-9, 0), (0, 9), (0, -9))])
    assert (rewards.amax(0) - rewards.amin(0)).max() < 0.05


def test_the_next_place_is_the_wrong_place():
    asked = Caption("square", "red", "big", "left", "white")
    drawn = Caption("square", "red", "big", "centre", "white")
    rows = torch.tensor([slot_indices(drawn)])
    assert scores(draw(rows, asked_places(rows)), [asked.text()]).item() < 0.05


def test_an_empty_picture_scores_nothing():
    blank = rgb(BACKGROUNDS)[ROWS[:, 4]][:, None, None].expand(-1, 128, 128, 3)
    noise = 0.02 * torch.randn(blank.shape, generator=torch.Generator().manual_seed(0))
    assert scores(blank).max() < 1e-3
    assert scores((blank + noise).clamp(0, 1)).max() < 0.05


def test_two_halves_beside_the_place_are_not_a_shape_on_it():
    inside = [i for i, caption in enumerate(CAPTIONS) if caption.place == "centre"]
    pictures = moved(0, 0)[inside]
    torn = rgb(BACKGROUNDS)[ROWS[inside, 4]][:, None, None].expand_as(pictures).clone()
    torn[:, :, :40] = pictures[:, :, 24:64]  # each half goes 24 px outwards
    torn[:, :, 88:] = pictures[:, :, 64:104]
    assert scores(torn, [PROMPTS[i] for i in inside]).max() < 0.1


def test_a_washed_out_estimate_still_says_where_it_is():
    """Early clean estimates are faint and blurred; the better placed one must win."""
    background = rgb(BACKGROUNDS)[ROWS[:, 4]][:, None, None]

    def faint(pictures: torch.Tensor) -> torch.Tensor:
        washed = (background + 0.5 * (pictures - background)).movedim(-1, 1)
        return torch.nn.functional.avg_pool2d(washed, 17, stride=1, padding=8, count_include_pad=False).movedim(1, -1)

    assert (scores(faint(moved(0, 0))) > scores(faint(moved(16, 0))) + 0.15).all()


def test_a_prompt_without_a_place_or_a_colour_is_judged_by_what_it_says():
    rows = ROWS[:8]
    pictures = draw(rows, asked_places(rows))
    assert scores(pictures, ["a shape"] * 8).min() > 0.99
    only_place = [Caption(place=caption.place).text() for caption in CAPTIONS[:8]]
    assert scores(pictures, only_place).min() > 0.99


def test_it_is_fast_enough_for_every_preview():
    pictures = moved(0, 0).repeat(2, 1, 1, 1)[:320]
    prompts = (PROMPTS * 2)[:320]
    best = min(_seconds(pictures, prompts) for _ in range(3))
    assert best < 2.0  # 0.1 s on two quiet cores


def _seconds(pictures: torch.Tensor, prompts: list[str]) -> float:
    start = time.perf_counter()
    scores(pictures, prompts)
    return time.perf_counter() - start


def test_the_result_is_one_float32_score_per_picture_on_any_size():
    pictures = torch.nn.functional.interpolate(moved(0, 0)[:4].movedim(-1, 1), scale_factor=2).movedim(1, -1)
    rewards = scores(pictures, PROMPTS[:4])
    assert rewards.shape == (4,) and rewards.dtype == torch.float32
    assert rewards.min() > 0.98
