"""``bench sizes``: weights and peak memory of one update row for the released models, computed on networks without weights."""

import argparse
from typing import Any

import torch
import torch.fx.experimental._config
from tqdm import tqdm

from .networks import FP8, parameters_of, patcher_of
from .sizes import SIZES, Size

GIB = 2**30
CARDS = (6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 180)  # GiB
ABOUT = "computed, not measured: bytes of one forward and backward of one picture or clip with checkpointing and AdamW, LoRA and cfg as recommended"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="append", choices=list(SIZES), help="only this one; may be given several times")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """{about, models: {name: {parameters, weights, by resolution and precision: row, cards}}}."""
    names = options.model or list(SIZES)
    models = {name: figures(SIZES[name]) for name in tqdm(names, desc="models")}
    print_table(models)
    return {"about": ABOUT, "cards_gib": CARDS, "models": models}


def figures(size: Size) -> dict[str, Any]:
    """All figures of one model; bytes, cards in GiB."""
    row = recommended(size)
    result: dict[str, Any] = {"text_tokens": size.tokens, "targets": row.targets, "rank": row.rank, "cfg": row.cfg}
    for precision, dtype in (("bf16", torch.bfloat16), ("fp8", FP8)):
        policy = policy_of(size, dtype)
        result["parameters"] = parameters_of(policy.patcher) - sum(p.numel() for p in policy.parameters())
        for resolution, latent in size.latents.items():
            result.setdefault(resolution, {})[precision] = figures_of(policy, size, latent)
    if policy.has_experts:
        result["note"] = "upper bound: as if every expert saw every token"
    return result


def recommended(size: Size) -> Any:
    """The table's row for the full model of this architecture."""
    from ..training.defaults import find

    return find(size.model, "", bool(size.config.get("guidance_embed")))


def policy_of(size: Size, dtype: torch.dtype) -> Any:
    from ..training.backends.comfy import ComfyPolicy
    from ..training.config import Job

    meta, row = torch.device("meta"), recommended(size)
    return ComfyPolicy(patcher_of(size, dtype, meta, torch.device("cpu")), Job(base={"kind": size.model}, targets=row.targets, rank=row.rank), checkpoint=True)


def figures_of(policy: Any, size: Size, latent: tuple[int, ...]) -> dict[str, Any]:
    """Bytes of the weights and of one row, and the smallest cards that should fit."""
    from ..training.backends.made_up import made_up_prompt
    from ..training.backends.room import demand_of

    prompt = made_up_prompt(policy.patcher.model, tokens=size.tokens)
    with torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True):  # HiDream's experts
        cost = policy.row_cost(list(latent), prompt, prompt, recommended(size).cfg)
    demand = demand_of(policy.patcher, cost, policy.parameters(), "adamw")
    found = {"weights": demand.weights, "lora_and_optimiser": demand.lora, "peak_of_one_row": cost.of(1), "each_further_row": cost.row}
    return {**found, "card_gib": smallest_card(demand, streams=False), "card_gib_streaming": smallest_card(demand, streams=True)}


def smallest_card(demand: Any, streams: bool) -> int | None:
    """GiB of the smallest card that takes one row, by the trainer's own rule on Linux with NVIDIA; None = larger than any."""
    from ..training.backends.room import UNSEEN, devices
    from ..training.capacity import Room, fit

    for card in CARDS:
        room = Room(total=card * GIB, reserve=int(devices.minimum_inference_memory() + card * GIB * UNSEEN), streams=streams)
        if fit(demand, room, wanted=1).rows:
            return card
    return None


def print_table(models: dict[str, Any]) -> None:
    print(f"{'model':17} {'parameters':>10}  {'':24} {'weights':>17} {'one row':>17} {'card':>9} {'streaming':>9}")
    for name, model in models.items():
        for resolution in (key for key, value in model.items() if isinstance(value, dict)):
            two = [model[resolution][precision] for precision in ("bf16", "fp8")]
            cells = [f"{two[0][key] / GIB:.1f} / {two[1][key] / GIB:.1f} GiB" for key in ("weights", "peak_of_one_row")]
            cards = ["/".join(str(entry[key] or "-") for entry in two) for key in ("card_gib", "card_gib_streaming")]
            print(f"{name:17} {model['parameters'] / 1e9:9.2f}B  {resolution:24} {cells[0]:>17} {cells[1]:>17} {cards[0]:>9} {cards[1]:>9}")
    print("bf16 / fp8; card: smallest graphics card in GiB, with all weights on it or streamed from RAM")
