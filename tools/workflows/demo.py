"""The two workflows on the built-in Demo Model, which run anywhere without a download."""

from ...training.job import read_json
from ..local import DEMO_FOLDER, training_prompts
from .parts import BLUE, BROWN, GREEN, PURPLE, Group, Part, Workflow, column
from .shared import (
    HALF,
    MIDDLE,
    NARROW,
    WIDGET,
    Values,
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
    visualizer,
    watching_band,
)

FIRST = """# First loop: fine-tune by reward

**1.** Start the trainer once and leave it open: double-click `start_trainer.bat` (Windows) or run `start_trainer.sh` in this pack's folder. Forgot it? *GRPO LoRA Trainer* shows the command; nothing is lost.

**2.** Press **Run**. Each press is one iteration: pictures, scores, credit, one new version of the LoRA. Then open **Stepwise GRPO** in the sidebar, press **Start**, and watch it work.

**3.** Watch *Credit Visualizer*: blue steps made the picture better, orange-red ones worse. The reward in *GRPO LoRA Trainer* should climb from about 0.6 to above 0.85, and so should that of *Held-Out Pictures*, whose prompts are never trained on.

**Your own model:** open the workflow *sd35*, *flux*, *qwen_image* or *z_image*, or replace *Demo Model* by *Base Model*, CLIP and VAE by their own loaders, the prompts by yours, and the reward by one you like. Change `run_name` in *Live LoRA* and *GRPO LoRA Trainer*."""

AGAINST = """# Stepwise against uniform

The same model, prompts and noise train two runs. The upper row gives each step of a picture the credit it earned (`centred`); the lower row gives all steps the final score, as Flow-GRPO does (`uniform`).

**1.** Start the trainer once and leave it open: `start_trainer.bat` (Windows) or `start_trainer.sh` in this pack's folder. One trainer serves both runs.

**2.** Press **Run**. Each press is one iteration of both. Then open **Stepwise GRPO** in the sidebar, press **Start**, and watch it work.

**3.** Compare the reward of the two *Held-Out Pictures*: same prompts, same seed. The runs *stepwise* and *uniform* also show their curves in the sidebar.

*Iteration* counts up by itself and decides prompts and noise of both rows. For another try, change both run names."""

TRAINED = {"learning_rate": 0.0025, "clip": 0.001, "beta": 0.02, "rank": 16, "alpha": 32.0, "targets": "attention", "rows_per_call": 64}
SCORED = {"rows_per_call": 64}
SIZE = {"width": 128, "height": 128}


def held_out_lines() -> list[str]:
    """Eight different prompts of those the demo is measured on and never trains on."""
    lines = list(dict.fromkeys(read_json(DEMO_FOLDER / "heldout.json")["prompts"]))
    return lines[:: len(lines) // 8][:8]


def first_loop() -> Workflow:
    """The smallest loop. Its numbers and widget values are those of the README's results."""
    run = {"run_name": "my_first_run"}
    model = Part("demo", ours("DemoModel"), id=1)
    live = live_lora("live", "demo.MODEL", run, id=2)
    conditions = (
        prompts({"clip": "demo.CLIP"}, training_prompts(), 12, room=270, id=3),
        negative("demo.CLIP", id=4),
        Part("latent", "EmptySD3LatentImage", values=SIZE, id=5),
        Part("schedule", "BasicScheduler", {"model": "demo.MODEL"}, {"steps": 10}, id=6),
    )
    roll = sampler("sampler", "live.MODEL", "prompts.positive", {}, {"law": "flow", "rows_per_call": 64}, id=7)
    reward = Part("reward", ours("PlacementReward"), id=8)
    scored = preview("credit", "live.MODEL", "demo.VAE", "sampler.TRAJECTORY", SCORED, id=9)
    train = trainer("trainer", "sampler.TRAJECTORY", "credit.CREDIT", {**run, **TRAINED}, id=12)
    look = held_out("looks", "live.MODEL", "demo.VAE", {}, SCORED, id=15)
    return Workflow(
        "first_loop",
        (
            ((note(FIRST, 400, id=13),), (column("1  Model", BLUE, NARROW, model, live),)),
            ((column("2  Prompts, steps", BLUE, NARROW, *conditions),),),
            ((column("3  Rollout", GREEN, MIDDLE, roll),), (column("4  Reward", GREEN, MIDDLE, reward, scored),)),
            ((column("5  Training", BROWN, NARROW, train),), (column("Held-out prompts", PURPLE, NARROW, held_out_prompts("demo.CLIP", held_out_lines(), id=14)),)),
            watching_band("credit", look, show_id=10, pictures_id=11),
        ),
    )


def stepwise_against_uniform() -> Workflow:
    """Two runs that differ in their credit scheme alone."""
    common = (
        Part("iteration", "PrimitiveInt", title="Iteration (counts up by itself)"),
        prompts({"clip": "demo.CLIP", "iteration": "iteration.INT"}, training_prompts(), 8, room=130),
        negative("demo.CLIP"),
        Part("latent", "EmptySD3LatentImage", values=SIZE),
        Part("schedule", "BasicScheduler", {"model": "demo.MODEL"}, {"steps": 10}),
    )
    reward = Part("reward", ours("PlacementReward"))
    lives = [live_lora(f"{name}_live", "demo.MODEL", {"run_name": f"against_{name}"}) for name in ("stepwise", "uniform")]
    return Workflow(
        "stepwise_against_uniform",
        (
            ((note(AGAINST, 340, width=MIDDLE),), (column("Model, reward, LoRAs", BLUE, MIDDLE, Part("demo", ours("DemoModel")), reward, *lives),)),
            ((column("Shared prompts, steps", BLUE, NARROW, *common, held_out_prompts("demo.CLIP", held_out_lines())),),),
            (
                (_lane("stepwise", "Stepwise: each step is paid what it earned", GREEN, "centred"),),
                (_lane("uniform", "Uniform: every step is paid the final score", BROWN, "uniform"),),
            ),
        ),
    )


def _lane(name: str, title: str, colour: str, scheme: str) -> Group:
    """One run: rollout, score, training, credit, held-out pictures."""
    run: Values = {"run_name": f"against_{name}"}
    model, made = f"{name}_live.MODEL", f"{name}_sampler.TRAJECTORY"
    roll = sampler(f"{name}_sampler", model, "prompts.positive", {"seed": "iteration.INT"}, SCORED)
    scored = preview(f"{name}_credit", model, "demo.VAE", made, {**SCORED, "credit_scheme": scheme})
    train = trainer(f"{name}_trainer", made, f"{name}_credit.CREDIT", {**run, "beta": 0.02, "rows_per_call": 64})
    show = visualizer(f"{name}_show", f"{name}_credit.CREDIT")
    look = held_out(f"{name}_looks", model, "demo.VAE", {}, SCORED)
    return Group(title, colour, ((roll,), (scored,), (train,), (show,), (look,)), (NARROW, MIDDLE, NARROW, WIDGET, HALF))
