"""Recommended settings: one row per architecture and kind of guidance, each value with its source. Standard library only.

They are starting points. A value without a published recipe is called ours; it follows from SD3.5's recipe.
"""

# Published clip ranges of 1e-4 bound the mean log density of a 512 px latent with 65,536 elements, whose spread falls with the root of
# their number: other sizes get 1e-4 * sqrt(65536 / elements), a video counted as one frame. Ranges of CPS (1e-5) and RatioNorm (4e-6)
# belong to other densities and do not carry over. Published KL weights are divided by the number of steps (NOTATION.md, beta).

import re
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any

TRUE_CFG, GUIDANCE_DISTILLED, FEW_STEP = "true cfg", "guidance-distilled", "few-step"
# Names of few-step files. "dedistilled" and "de-turbo" are the opposite; "cfgdistill" means guidance alone.
_NOT_AFTER = "".join(f"(?<!{word})(?<!{word}[-_. ])" for word in ("de", "un", "cfg", "guidance"))
FEW_STEP_NAME = "|".join(
    (rf"{_NOT_AFTER}(turbo|distil)", "schnell|lightning|lightx2v|causvid", r"(?<![a-z])(flash|lcm|dmd|hyper)(?![a-z])", r"(?<!\d)\d\d?[-_ ]?steps?")
)

OURS = "ours, by analogy"
CARD = "usual on model cards"
COMFYUI = "ComfyUI's own"
BY_SIZE = "ours, by the latent's size"

SAMPLING = ("steps", "view_steps", "cfg", "guidance", "law", "eta", "shift", "size", "group_size")
LEARNING = ("targets", "rank", "alpha", "learning_rate", "clip", "beta")
SOURCED = (*SAMPLING, *LEARNING)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Settings for one architecture and kind. ``find`` chooses it."""

    name: str
    """For people; no two rows share one."""
    classes: tuple[str, ...] = ()
    """Class names in ComfyUI's supported_models.py; empty = any architecture."""
    kind: str
    """TRUE_CFG, GUIDANCE_DISTILLED or FEW_STEP."""
    words: str = ""
    """Pattern; a file whose name has it takes this row."""
    embedded: bool | None = None
    """A model with (True) or without (False) an input for guidance takes this row; None = that tells nothing."""
    steps: int
    """Denoising steps K of a rollout."""
    view_steps: int
    """Steps for finished pictures."""
    cfg: float
    guidance: float | None = None
    """Value for Flux Guidance; None = the model has no such input."""
    law: str = "ddim"
    eta: float = 0.7
    shift: float | None = None
    """s in t -> s t / (1 + (s - 1) t); None = as the model has it."""
    shift_node: str = "ModelSamplingAuraFlow"
    """The stock node that sets this shift without changing how the network is told the time."""
    size: tuple[int, int] = (512, 512)
    """Width and height in px."""
    targets: str = "attention"
    rank: int = 32
    alpha: float = 64.0
    learning_rate: float = 1e-4
    clip: float = 1e-4
    beta: float = 0.0
    group_size: int = 8
    sources: dict[str, str] = field(default_factory=dict)
    """Source of each name in SOURCED."""


_USUAL = {
    **dict.fromkeys(SOURCED, OURS),
    **dict.fromkeys(("view_steps", "cfg", "guidance"), CARD),
    **{"shift": COMFYUI, "clip": BY_SIZE},
}


def _row(name: str, classes: str, kind: str, sources: dict[str, str] | None = None, **values: Any) -> Row:
    """A row; ``sources`` {"names of values": source} says which sources are not the usual ones."""
    own = {key: source for keys, source in (sources or {}).items() for key in keys.split()}
    if kind == FEW_STEP:
        values = {"cfg": 1.0, "words": FEW_STEP_NAME, "view_steps": values["steps"], **values}
        own = {"steps": CARD, **own}
    return Row(name=name, classes=tuple(classes.split()), kind=kind, sources={**_USUAL, **own}, **values)


_DEMO = "measured here (README)"
_PAPER = "Stepwise-Flow-GRPO's paper"
_GENEVAL = "Flow-GRPO geneval_sd3"
_ONE_GPU = "Flow-GRPO general_ocr_sd3_1gpu"
_SMALLEST = "verl-omni sd35_medium_ocr_lora"  # 8 prompts x 8 pictures: of all published recipes the nearest to one card
_FLUX = "Flow-GRPO pickscore_flux"
_QWEN = "Flow-GRPO pickscore_qwenimage"
_WAN = "Flow-GRPO general_ocr_wan2_1"
_KLEIN = "Precise flux2_klein"
_DISTILLED = "ours; guidance stands in for it"
_TOLD_TO_1000 = {"shift_node": "ModelSamplingSD3"}  # networks that are told the time from 0 to 1000
_BIG = {"rank": 64, "alpha": 128.0}

ROWS: tuple[Row, ...] = (
    _row(
        "Demo Model", "Demo", TRUE_CFG, dict.fromkeys(SOURCED, _DEMO), steps=10, view_steps=10, cfg=1.0, law="flow", shift=3.0, size=(128, 128),
        rank=16, alpha=32.0, learning_rate=2.5e-3, clip=1e-3, beta=0.02, **_TOLD_TO_1000,
    ),
    _row("SD3.5 Large Turbo", "SD3", FEW_STEP, steps=4, shift=3.0, **_TOLD_TO_1000),
    _row(
        "SD3, SD3.5", "SD3", TRUE_CFG,
        {
            "steps view_steps cfg size targets clip": _GENEVAL, "law eta": _PAPER, "beta": f"{_GENEVAL}: 0.04 / steps",
            "rank alpha learning_rate": _SMALLEST, "group_size": _ONE_GPU,
        },
        steps=10, view_steps=40, cfg=4.5, shift=3.0, beta=0.004, **_TOLD_TO_1000,
    ),
    _row(
        "FLUX.1 schnell", "FluxSchnell", FEW_STEP, {"rank alpha targets": _FLUX}, embedded=False, steps=4, shift=1.0, targets="attention_mlp", **_BIG
    ),
    _row("FLUX.1 turbo", "Flux", FEW_STEP, {"rank alpha targets": _FLUX}, steps=8, guidance=3.5, shift=3.16, targets="attention_mlp", **_BIG),
    _row(
        "FLUX.1 dev", "Flux", GUIDANCE_DISTILLED,
        {
            "steps view_steps guidance law eta size targets rank alpha clip beta": _FLUX, "cfg": _DISTILLED,
            "learning_rate": "ours; 3e-4 is for 1152 pictures",
        },
        steps=6, view_steps=28, cfg=1.0, guidance=3.5, law="flow", eta=0.9, shift=3.16, targets="attention_mlp", **_BIG,
    ),
    _row(
        "FLUX.2 klein base", "Flux2", TRUE_CFG, {"steps cfg law eta size rank alpha learning_rate beta group_size": _KLEIN},
        words="klein.*base|base.*klein", steps=20, view_steps=50, cfg=1.0, law="precise", eta=1.5, shift=7.54, rank=16, alpha=16.0,
        learning_rate=8e-5, clip=7e-5,
    ),
    _row("FLUX.2 klein", "Flux2", FEW_STEP, embedded=False, steps=4, shift=7.54, clip=7e-5),
    _row("FLUX.2 dev", "Flux2", GUIDANCE_DISTILLED, {"cfg": _DISTILLED}, steps=10, view_steps=28, cfg=1.0, guidance=4.0, shift=7.54, clip=7e-5),
    _row("Chroma", "Chroma", TRUE_CFG, steps=10, view_steps=40, cfg=3.0, shift=3.16),
    _row("AuraFlow", "AuraFlow", TRUE_CFG, steps=10, view_steps=50, cfg=3.5, shift=1.73, clip=2e-4),
    _row("Lumina-Image 2.0", "Lumina2", TRUE_CFG, steps=10, view_steps=50, cfg=4.0, shift=6.0),
    _row("Z-Image Turbo", "ZImage", FEW_STEP, steps=8, shift=3.0),
    _row("Z-Image", "ZImage", TRUE_CFG, steps=10, view_steps=50, cfg=4.0, shift=3.0),
    _row("Qwen-Image Lightning", "QwenImage", FEW_STEP, {"rank alpha targets": _QWEN}, steps=8, shift=3.16, **_BIG),
    _row(
        "Qwen-Image", "QwenImage", TRUE_CFG,
        {
            "steps view_steps cfg size targets rank alpha clip beta": _QWEN, "law eta": "ours; 1.2 is for 2 random steps",
            "learning_rate": "ours; 3e-4 is for 512 pictures",
        },
        steps=10, view_steps=50, cfg=4.0, shift=3.16, **_BIG,
    ),
    _row("HiDream-I1 Fast", "HiDream", FEW_STEP, {"shift": CARD}, words="fast", steps=16, shift=3.0, **_TOLD_TO_1000),
    _row("HiDream-I1 Dev", "HiDream", FEW_STEP, {"shift": CARD}, words="dev", steps=28, shift=6.0, **_TOLD_TO_1000),
    _row("HiDream-I1 Full", "HiDream", TRUE_CFG, {"shift": CARD}, steps=10, view_steps=50, cfg=5.0, shift=3.0, **_TOLD_TO_1000),
    _row("Wan 2.1 few-step", "WAN21_T2V", FEW_STEP, {"shift": CARD, "size": _WAN}, steps=4, shift=5.0, size=(416, 240), clip=1.6e-4, **_TOLD_TO_1000),
    _row(
        "Wan 2.1", "WAN21_T2V", TRUE_CFG,
        {"steps view_steps cfg law eta size learning_rate clip group_size": _WAN, "beta": f"{_WAN}: 0.004 / steps"},
        steps=20, view_steps=50, cfg=4.5, law="flow", shift=8.0, size=(416, 240), clip=1e-3, beta=0.0002, group_size=4, **_TOLD_TO_1000,
    ),
    _row("HunyuanVideo few-step", "HunyuanVideo", FEW_STEP, steps=6, guidance=6.0, shift=7.0, size=(512, 320), clip=1.3e-4, **_TOLD_TO_1000),
    _row(
        "HunyuanVideo", "HunyuanVideo", GUIDANCE_DISTILLED, {"cfg": _DISTILLED}, steps=10, view_steps=50, cfg=1.0, guidance=6.0, shift=7.0,
        size=(512, 320), clip=1.3e-4, **_TOLD_TO_1000,
    ),
    _row(
        "HunyuanImage 2.1 distilled", "HunyuanImage21", FEW_STEP, {"shift": CARD}, embedded=True, steps=8, guidance=3.25, shift=4.0,
        size=(1024, 1024), **_TOLD_TO_1000,
    ),
    _row("HunyuanImage 2.1", "HunyuanImage21", TRUE_CFG, steps=10, view_steps=50, cfg=3.5, shift=5.0, size=(1024, 1024), **_TOLD_TO_1000),
    _row("OmniGen 2", "Omnigen2", TRUE_CFG, steps=10, view_steps=50, cfg=5.0, shift=2.6),
    _row("LTX-Video distilled", "LTXV", FEW_STEP, steps=8, shift=10.7, size=(768, 512)),
    _row("LTX-Video", "LTXV", TRUE_CFG, steps=10, view_steps=30, cfg=3.0, shift=10.7, size=(768, 512)),
    _row("Kandinsky 5 video distilled", "Kandinsky5", FEW_STEP, steps=16, shift=10.0, size=(768, 512), clip=8e-5, **_TOLD_TO_1000),
    _row(
        "Kandinsky 5 video nocfg", "Kandinsky5", GUIDANCE_DISTILLED, words="nocfg", steps=10, view_steps=50, cfg=1.0, shift=10.0, size=(768, 512),
        clip=8e-5, **_TOLD_TO_1000,
    ),
    _row("Kandinsky 5 video", "Kandinsky5", TRUE_CFG, steps=10, view_steps=50, cfg=5.0, shift=10.0, size=(768, 512), clip=8e-5, **_TOLD_TO_1000),
    _row("any other few-step model", "", FEW_STEP, dict.fromkeys(("steps", "view_steps", "cfg"), OURS), steps=8),
    _row(
        "any other model with a guidance input", "", GUIDANCE_DISTILLED, dict.fromkeys(("view_steps", "cfg", "guidance"), OURS), embedded=True,
        steps=10, view_steps=28, cfg=1.0, guidance=3.5,
    ),
    _row("any other model", "", TRUE_CFG, dict.fromkeys(("view_steps", "cfg"), OURS), steps=10, view_steps=40, cfg=4.0),
)  # fmt: skip


def find(class_name: str, file_name: str = "", guidance_embedded: bool = False) -> Row:
    """The row for a model: ComfyUI's class for it, its file's name (folders do not count), and whether it has an input for guidance.

    A file whose name says few steps never gets the settings of the full model; the last rows stand for every other architecture.
    """
    file = PureWindowsPath(file_name).name.lower()
    few = re.search(FEW_STEP_NAME, file) is not None
    for row in ROWS:
        told = bool(row.words and re.search(row.words, file)) or (row.embedded is not None and row.embedded == guidance_embedded)
        tells_nothing = not row.words and row.embedded is None
        if (not row.classes or class_name in row.classes) and (told or (tells_nothing and not few)):
            return row
    return ROWS[-1]


def named(name: str) -> Row:
    """The row of that name; the row for any other model where there is none."""
    return next((row for row in ROWS if row.name == name), ROWS[-1])


def alpha_for(row: Row, rank: int) -> float:
    """Alpha that keeps the row's scale alpha / rank at another rank."""
    return row.alpha / row.rank * rank


def by_source(row: Row) -> dict[str, list[str]]:
    """Every value of the row as a phrase such as "steps 10", in a list under its source."""
    result: dict[str, list[str]] = {}
    for name in SOURCED:
        value = vars(row)[name]
        if value is not None:
            result.setdefault(row.sources[name], []).append(f"{name} {shown(value)}")
    return result


def shown(value: Any) -> str:
    """A value as text: a size as 512 x 512, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return " x ".join(str(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe(row: Row) -> str:
    """The whole row for people, one source a line."""
    lines = [f"{', '.join(phrases)} ({source})" for source, phrases in by_source(row).items()]
    return "\n".join([f"{row.name}: {row.kind}", *lines, *([] if row.shift is None else [f"shift is set by {row.shift_node}"])])
