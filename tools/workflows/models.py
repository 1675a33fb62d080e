"""The workflows for one's own model: one shape, filled in for each family of models."""

from ...training.defaults import named
from .families import FAMILIES, Family
from .parts import BLUE, BROWN, GREEN, GREY, Part, Workflow, column
from .shared import (
    MIDDLE,
    NARROW,
    held_out,
    held_out_prompts,
    live_lora,
    negative,
    note,
    ours,
    preview,
    prompts,
    sampler,
    trainer,
    watching_band,
)

__all__ = ["FAMILIES", "workflow"]

NOTE = """# Fine-tune {title}

**1.** Choose your files in the loaders. {other_files} Then start the trainer once and leave it open: `start_trainer.bat` (Windows) or `start_trainer.sh` in this pack's folder.

**2.** Press **Run**. Each press is one iteration: 4 prompts x 8 pictures, scores, credit, one new version of the LoRA. *Recommended Settings* fills in steps, cfg, size and the rest for your file.

**3.** Open **Stepwise GRPO** in the sidebar, press **Start**, and watch *Held-Out Pictures*: made every fifth version, from prompts that are not trained on.

**Make it yours:** write your own prompts, a dozen or more, as different as what you will make. *Warmth Reward* needs no download and is there to see the loop work: replace it by a reward you like. Another `run_name` in *Live LoRA* and *GRPO LoRA Trainer* starts a new run. Out of memory? Lower width and height, or *rows_per_call*."""

PROMPTS = """a red fox asleep on a mossy stone in a pine forest, morning mist
portrait of an old fisherman with a weathered face, window light
a bowl of ramen on a wooden counter, steam rising, close-up
a narrow street in an old town after rain, lanterns reflected in the puddles
a lighthouse on a cliff in a storm, oil painting
a glass greenhouse full of tropical plants, wide shot
an astronaut reading a newspaper at a bus stop, watercolour
a vintage motorcycle in a sunlit garage, product photo
a paper-cut landscape of mountains and a winding river
two children flying a kite on a wide beach, seen from behind
a black cat on a bookshelf between old leather books
a futuristic city at night, view from a rooftop garden""".splitlines()
HELD_OUT = """a white horse running through shallow water
portrait of a young woman with freckles, studio light
a small wooden cabin in a snowy valley at night
a still life with pears and a blue jug, oil painting""".splitlines()
TABLE = ("group_size", "cfg", "law", "eta")  # outputs of Recommended Settings that are widgets of the sampler
LOOK_EVERY = 5  # versions; a look has several times the steps of a rollout


def workflow(family: Family) -> Workflow:
    """The family's workflow."""
    row = named(family.row)
    run = {"run_name": f"my_{family.name}"}
    text = NOTE.format(title=family.title, other_files=family.other_files)
    roll = sampler("sampler", "live.MODEL", _guided(family, "prompts"), {name: f"table.{name}" for name in TABLE})
    scoring = (Part("reward", ours("WarmthReward")), preview("credit", "live.MODEL", family.vae, "sampler.TRAJECTORY"))
    train = trainer("trainer", "sampler.TRAJECTORY", "credit.CREDIT", {**run, "beta": row.beta})
    model = _shifted(family)
    steps = Part("look_schedule", "BasicScheduler", {"model": model}, {"steps": row.view_steps}, "Steps of the held-out pictures")
    looks = held_out("looks", "live.MODEL", family.vae, {"positive": _guided(family, "held_out_prompts"), "sigmas": "look_schedule.SIGMAS", "cfg": "table.cfg"}, {"every": LOOK_EVERY})
    made = (*_size_and_steps(model), steps)
    return Workflow(
        family.name,
        (
            ((note(text, 400),), (column("Recommended", GREY, NARROW, Part("table", ours("RecommendedSettings"), {"model": family.model}, room=130)),)),
            ((column("1  Your model", BLUE, NARROW, *family.loaders, *_sampling(family), live_lora("live", model, run)),),),
            ((column("2  Prompts", BLUE, NARROW, *_prompts(family)),),),
            ((column("3  Steps and rollout", GREEN, NARROW, *made, roll),),),
            ((column("4  Reward", GREEN, MIDDLE, *scoring),), (column("5  Training", BROWN, MIDDLE, train),)),
            watching_band("credit", looks),
        ),
    )


def _prompts(family: Family) -> tuple[Part, ...]:
    return (
        prompts({"clip": family.clip}, PROMPTS, 4, room=190),
        *_guidance(family, "prompts"),
        held_out_prompts(family.clip, HELD_OUT),
        *_guidance(family, "held_out_prompts"),
        negative(family.clip),
    )


def _size_and_steps(model: str) -> tuple[Part, Part]:
    size = Part("latent", "EmptySD3LatentImage", {"width": "table.width", "height": "table.height"})
    return size, Part("schedule", "BasicScheduler", {"model": model, "steps": "table.steps"}, title="Steps of the rollout")


def _shifted(family: Family) -> str:
    return "shift.MODEL" if family.shifted else family.model


def _sampling(family: Family) -> tuple[Part, ...]:
    shift = Part("shift", "ModelSamplingAuraFlow", {"model": family.model, "shift": "table.shift"})
    return (shift,) if family.shifted else ()


def _guided(family: Family, key: str) -> str:
    return f"{key}_guidance.CONDITIONING" if family.guided else f"{key}.positive"


def _guidance(family: Family, key: str) -> tuple[Part, ...]:
    part = Part(f"{key}_guidance", "FluxGuidance", {"conditioning": f"{key}.positive", "guidance": "table.guidance"})
    return (part,) if family.guided else ()
