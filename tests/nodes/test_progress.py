"""What the page sees while the nodes work, and how fast they stop. No trainer runs here."""

import time
from itertools import pairwise

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.nodes.graphs import change, find, first_loop, version_by_hand
from stepwise_grpo.tests.nodes.live import Seen, watch
from stepwise_grpo.tests.nodes.test_held_out import held_out
from stepwise_grpo.training.job import RunFolder, write_whole

SAMPLER, PREVIEW, TRAINER, HELD_OUT, LIVE = (f"StepwiseGRPO_{name}" for name in ("StepwiseSDESampler", "TweediePreviewReward", "GRPOLoRATrainer", "HeldOutPictures", "LiveLoRA"))
TILE = 64  # px


@pytest.fixture(scope="module")
def run(server) -> tuple[dict, Seen]:
    """Two prompts x two pictures x five steps, one picture a call in the sampler and three at once in the preview."""
    graph = change(first_loop(server, "watched"), "BasicScheduler", steps=5)
    change(graph, SAMPLER, rows_per_call=1)
    change(graph, PREVIEW, rows_per_call=3, substeps=3)
    return graph, watch(server, graph)


def check_bar(seen: Seen, total: int, rows_per_call: int) -> None:
    """The bar moves with every network call, never falls, and ends full."""
    done = [value for _, value, _ in seen.bars]
    assert {total for _, _, total in seen.bars} == {total}
    assert done[-1] == total and all(0 <= b - a <= rows_per_call for a, b in pairwise([0, *done]))


def check_sheets(seen: Seen, columns: int, rows: int) -> None:
    """One picture a step, each a column wider than the one before, and not grey all over."""
    sizes = [picture.size for _, picture in seen.pictures]
    assert sizes == [(TILE * (i + 1), TILE * rows) for i in range(columns)]
    assert all(picture.convert("L").getextrema()[1] - picture.convert("L").getextrema()[0] > 30 for _, picture in seen.pictures)


def test_the_sampler_shows_how_its_pictures_clear_up(run):
    graph, seen = run
    seen = seen.of(find(graph, SAMPLER))
    check_bar(seen, 2 + 4 * 4, rows_per_call=1)
    check_sheets(seen, columns=5, rows=2)


def test_the_sampler_says_what_it_costs_how_long_it_takes_and_what_it_did(run):
    graph, seen = run
    first, *on_the_way, last = [text for _, text in seen.of(find(graph, SAMPLER)).texts]
    assert first == "2 prompts x 2 pictures x 5 steps: 18 pictures through the network"
    assert on_the_way[0].startswith("2 of 18 pictures through the network, about ") and on_the_way[0].endswith(" s left")
    assert last.startswith("4 pictures in ") and last.endswith("(18 pictures through the network)")


def test_the_preview_shows_the_pictures_that_it_scores(run):
    graph, seen = run
    seen = seen.of(find(graph, PREVIEW))
    check_bar(seen, 22 + 2 * 18, rows_per_call=3)  # two of the start, four of each state; two more substeps where noise is left
    widths = [picture.width for _, picture in seen.pictures]
    assert widths == sorted(widths) and set(widths) >= {TILE * i for i in range(2, 7)}
    assert {picture.height for _, picture in seen.pictures} == {2 * TILE}
    texts = [text for _, text in seen.texts]
    assert texts[0] == "22 previews to score: 36 pictures through the network, 22 through the VAE"
    assert texts[1].startswith("6 of 58 pictures through network and VAE, about ") and texts[-1].startswith("reward ")


def test_a_scheme_without_previews_shows_the_finished_pictures(server):
    graph = change(first_loop(server, "uniform watched"), PREVIEW, credit_scheme="uniform")
    seen = watch(server, graph).of(find(graph, PREVIEW))
    assert [picture.size for _, picture in seen.pictures] == [(TILE, 2 * TILE)]
    assert seen.texts[0][1] == "4 previews to score: 0 pictures through the network, 4 through the VAE"


def test_held_out_pictures_show_the_finished_ones_only(server):
    # A picture on the way would stay on the page in place of those that the node gives out.
    graph = held_out(server, "held out watched", rows_per_call=2)
    seen = watch(server, graph).of(find(graph, HELD_OUT))
    check_bar(seen, 3 * 3 + 3, rows_per_call=2)
    assert seen.pictures == []
    assert seen.texts[-1][1].startswith("version 0: held-out reward ")


def test_no_sheet_has_more_columns_than_fit(server):
    graph = change(first_loop(server, "many steps"), "BasicScheduler", steps=30)
    seen = watch(server, graph)
    assert max(picture.width for _, picture in seen.of(find(graph, SAMPLER)).pictures) == 10 * TILE  # every third step
    assert max(picture.width for _, picture in seen.of(find(graph, PREVIEW)).pictures) == 11 * TILE  # and the picture


def test_the_page_takes_a_file_name_for_text(server):
    path = server.output / "loras" / "black & white.safetensors"
    layers = safetensors.torch.load_file(version_by_hand(server.output, "for its layers").version_file(1))
    write_whole(path, safetensors.torch.save(layers))
    graph = change(held_out(server, "text"), LIVE, start_from=path.name)
    assert [text for _, text in watch(server, graph).of(find(graph, LIVE)).texts] == ["run 'text' has no version yet: it starts from black &amp; white.safetensors"]


# cancel


def check_stopped(server, graph: dict, node: str, rows_per_call: int, run: str) -> None:
    """Interrupt in the middle of ``node``: at most one network call more, nothing queued, and the server works on."""
    started = []

    def in_the_middle(seen: Seen) -> bool:
        mine = seen.of(node).bars
        started.extend([time.monotonic()] if mine and not started else [])
        return len(mine) > 5

    seen = watch(server, graph, in_the_middle)
    ended, mine = time.monotonic(), seen.of(node)
    assert seen.end == "execution_interrupted"
    assert mine.bars[-1][1] < mine.bars[-1][2] / 2  # it was not over anyway
    assert mine.bars[-1][1] - seen.stopped_at <= rows_per_call
    assert ended - started[0] < 30
    folder = RunFolder(server.output, run)
    assert not folder.waiting() and folder.job() is None and not folder.looks.exists()
    assert server.run(held_out(server, f"after {run}"))


def slow_calls(server, run: str) -> dict:
    """One prompt x 64 pictures, 16 a call."""
    graph = change(first_loop(server, run), "StepwiseGRPO_PromptList", prompts_per_iteration=1)
    return change(graph, SAMPLER, group_size=64, rows_per_call=16)


def test_cancelling_a_rollout_makes_at_most_one_call_more(server):
    graph = change(slow_calls(server, "cancelled rollout"), "BasicScheduler", steps=400)
    check_stopped(server, graph, find(graph, SAMPLER), 16, "cancelled rollout")


def test_cancelling_a_preview_makes_at_most_one_call_more(server):
    graph = change(slow_calls(server, "cancelled preview"), PREVIEW, substeps=64, rows_per_call=16)
    check_stopped(server, graph, find(graph, PREVIEW), 16, "cancelled preview")


def test_cancelling_held_out_pictures_makes_at_most_one_call_more(server):
    graph = change(held_out(server, "cancelled look", rows_per_call=1), "BasicScheduler", steps=900)
    check_stopped(server, graph, find(graph, HELD_OUT), 1, "cancelled look")


# models without a cheap latent preview


def test_every_latent_of_comfyui_gives_a_sheet_or_none(comfy):
    import comfy.latent_formats as formats

    drawn = {}
    for kind in [kind for kind in vars(formats).values() if isinstance(kind, type) and issubclass(kind, formats.LatentFormat)]:
        drawn[kind.__name__] = sheets(kind(), torch.zeros(1, kind.latent_channels, *[1] * (kind.latent_dimensions - 2), 8, 8))
    assert all(drawn[name] == [(TILE, TILE), (2 * TILE, TILE)] for name in ("SD3", "Flux", "Wan21", "HunyuanVideo", "LTXV"))
    assert drawn["LatentFormat"] is None


def test_a_preview_that_does_not_fit_the_latent_costs_no_rollout(comfy):
    import comfy.latent_formats as formats

    assert sheets(formats.SD3(), torch.zeros(1, 4, 8, 8)) == []


class Model:
    """What a sheet asks of a MODEL."""

    load_device = torch.device("cpu")

    def __init__(self, latent_format):
        self._format = latent_format

    def get_model_object(self, name):
        return {"latent_format": self._format}[name]


class Shown(list):
    """The sizes of the pictures shown."""

    def show(self, picture):
        self.append(picture.size)


def sheets(latent_format, clean):
    """What two steps of a rollout show; None where nothing is drawn."""
    from stepwise_grpo.nodes.contact_sheet import clean_sheet, contact_sheet

    shown = Shown()
    draw = clean_sheet(Model(latent_format), 2, shown)
    assert (draw is None) == (contact_sheet(Model(latent_format), (1.0, 0.5, 0.0), 1, 2, shown) is None)
    if draw is None:
        return None
    for k in range(2):
        draw(k, clean)
    return list(shown)
