"""The parts that every workflow has: rollout, score, credit, training, held-out pictures."""

from typing import Any

from .parts import BLUE, GREY, NEGATIVE, POSITIVE, PURPLE, Group, Part, column

NARROW, MIDDLE, HALF, WIDGET = 318, 338, 300, 590  # column widths, px; Credit Visualizer cannot be narrower than WIDGET
SAYS, SHOWS = 48, 220  # what a node says about its work below its widgets, and the pictures it shows meanwhile, px
WIDE = 2 * HALF + 40  # two groups and what lies between them
Values = dict[str, Any]


def ours(name: str) -> str:
    """The class of one of this pack's nodes."""
    return f"StepwiseGRPO_{name}"


def note(text: str, room: int, id: int = 0, width: int = NARROW) -> Group:
    """The frame with the note that is read first."""
    return column("Start here", GREY, width, Part("note", "MarkdownNote", values={"text": text}, title="Read me first", room=room, id=id))


def live_lora(key: str, model: str, run: Values, id: int = 0) -> Part:
    return Part(key, ours("LiveLoRA"), {"model": model}, run, id=id, room=SAYS)


def prompts(links: dict[str, str], lines: list[str], count: int, key: str = "prompts", title: str = "", room: int = 0, id: int = 0, **values: Any) -> Part:
    """A Prompt List; ``count`` prompts an iteration."""
    values = {"prompts": "\n".join(lines), "prompts_per_iteration": count, **values}
    return Part(key, ours("PromptList"), links, values, title, id, room, POSITIVE)


def held_out_prompts(clip: str, lines: list[str], id: int = 0) -> Part:
    """All of them at every press, in the same order."""
    return prompts({"clip": clip}, lines, len(lines), "held_out_prompts", "Held-out prompts (not trained on)", 70, id, iteration=(0, "fixed"))


def negative(clip: str, id: int = 0) -> Part:
    return Part("negative", "CLIPTextEncode", {"clip": clip}, {"text": ""}, "Negative prompt (empty)", id, 0, NEGATIVE)


def sampler(key: str, model: str, positive: str, links: dict[str, str], values: Values | None = None, id: int = 0) -> Part:
    """The rollout; ``links`` are those that replace a widget, such as {"cfg": "table.cfg"}."""
    inputs = {"model": model, "positive": positive, "negative": "negative.CONDITIONING", "latent_image": "latent.LATENT", "sigmas": "schedule.SIGMAS"}
    return Part(key, ours("StepwiseSDESampler"), {**inputs, **links}, values or {}, id=id, room=SAYS + SHOWS)


def preview(key: str, model: str, vae: str, trajectory: str, values: Values | None = None, id: int = 0) -> Part:
    links = {"model": model, "vae": vae, "trajectory": trajectory, "reward": "reward.REWARD"}
    return Part(key, ours("TweediePreviewReward"), links, values or {}, id=id, room=SAYS + SHOWS)


def visualizer(key: str, credit: str, room: int = 530, id: int = 0) -> Part:
    return Part(key, ours("CreditVisualizer"), {"credit": credit}, id=id, room=room)


def trainer(key: str, trajectory: str, credit: str, values: Values, id: int = 0) -> Part:
    return Part(key, ours("GRPOLoRATrainer"), {"trajectory": trajectory, "credit": credit}, values, id=id, room=70)


def held_out(key: str, model: str, vae: str, links: dict[str, str], values: Values | None = None, id: int = 0, room: int = 330) -> Part:
    """Held-Out Pictures on the held-out prompts; ``links`` may name another schedule, prompts or cfg."""
    inputs = {"model": model, "vae": vae, "positive": "held_out_prompts.positive", "negative": "negative.CONDITIONING"}
    inputs |= {"latent_image": "latent.LATENT", "sigmas": "schedule.SIGMAS", "reward": "reward.REWARD"}
    return Part(key, ours("HeldOutPictures"), {**inputs, **links}, values or {}, id=id, room=room)


def watching_band(credit: str, look: Part, show_id: int = 0, pictures_id: int = 0) -> tuple[tuple[Group, ...], ...]:
    """The last band: credit on top, the pictures of the iteration and the held-out ones below."""
    made = Part("pictures", "PreviewImage", {"images": f"{credit}.pictures"}, title="The finished pictures", id=pictures_id, room=look.room)
    below = (column("This iteration", BLUE, HALF, made), column("Held-out", PURPLE, HALF, look))
    return (column("Credit: which step earned what", PURPLE, WIDE, visualizer("show", f"{credit}.CREDIT", id=show_id)),), below
