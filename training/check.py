"""``python training check MODEL``: whether a model can be trained, measured on the model.

Exit code 0: it can. 1: it must not be trained, and the table says why. 2: it could not be checked.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .comfyui import add_options, use_comfyui
from .config import Job
from .job import write_json
from .lora import TARGETS
from .selfcheck import Finding, refusal

MARKS = {True: "ok", False: "FAILED", None: "not measured"}


def main(arguments: list[str]) -> None:
    """Whether a model can be trained, measured on the model."""
    options = parse(arguments)
    try:
        use_comfyui(options, wait=False)
        findings = check(options)
    except (Exception, SystemExit) as error:  # an unusual network may fail in any way; nothing was changed
        print(f"{options.model}: {told(error, options)}", file=sys.stderr)
        raise SystemExit(2) from None
    reason = refusal(findings)
    print(f"\n{options.model}: " + (f"must not be trained. {reason}" if reason else "can be trained"))
    if options.json:
        try:
            write_report(options.json, options.model, findings)
        except OSError as error:
            raise SystemExit(f"--json: {error}") from None
    raise SystemExit(1 if reason else 0)


def told(error: BaseException, options: argparse.Namespace) -> str:
    """The error in a sentence; what a network raises for a size it cannot take is often none."""
    if isinstance(error, AssertionError):
        return f"the network fails at {options.size} px ({error or 'assertion'}); try another --size"
    return str(error) or type(error).__name__


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python training check", description="Measures whether a model can be trained: gradients, checkpointing, ratio, keys, the stock loader, time and memory.")
    parser.add_argument("model", metavar="MODEL", help="a name as ComfyUI lists it, or the path of a file")
    parser.add_argument("--kind", default="diffusion_models", choices=("diffusion_models", "checkpoints"), help="the folder kind the name is looked for in")
    parser.add_argument("--weight-dtype", default="default", help="precision of the weights, as in Load Diffusion Model")
    parser.add_argument("--targets", default="attention", choices=list(TARGETS), help="which layers get a LoRA")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--size", type=int, default=512, help="pixels an edge of the pictures, 64 to 4096")
    parser.add_argument("--cfg", type=float, default=1.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there as well")
    add_options(parser)
    options = parser.parse_args(arguments)
    if not 64 <= options.size <= 4096:
        parser.error(f"--size must lie between 64 and 4096; got {options.size}")
    if not 0 <= options.cfg <= 100:
        parser.error(f"--cfg must lie between 0 and 100; got {options.cfg}")
    return options


def check(options: argparse.Namespace) -> list[Finding]:
    """All findings, printed as they come."""
    from .backends.whole_check import Setting, check_model

    kind, load = loader(options)
    job = Job(base={"kind": kind, "name": options.model}, targets=options.targets, rank=options.rank, alpha=2.0 * options.rank)
    findings = []
    for finding in check_model(load, Setting(job, options.size, options.cfg)):
        print(f"{finding.name:24} {MARKS[finding.passed]:13} {finding.figure}", flush=True)
        findings.append(finding)
    return findings


def loader(options: argparse.Namespace) -> tuple[str, Callable[[], Any]]:
    """The folder kind and what loads a fresh copy of the model."""
    from .backends.loading import add_model_folder, load_model

    name, path = options.model, Path(options.model)
    if path.is_file():
        name = path.name
        add_model_folder(options.kind, path.resolve().parent)
    return options.kind, lambda: load_model(options.kind, name, options.weight_dtype)


def write_report(path: Path, model: str, findings: list[Finding]) -> None:
    """{model, passed, findings} as JSON."""
    report = {"model": model, "passed": refusal(findings) is None, "findings": [asdict(finding) for finding in findings]}
    write_json(path, report)
