"""Prompt List: the prompts of one iteration as separate entries of one CONDITIONING."""

from typing import Any

from comfy_api.latest import io

from ..training.prompts import choose, prompt_lines
from .convert import tagged
from .sockets import CATEGORY, COUNTS_UP, MAX_SEED


class PromptList(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StepwiseGRPO_PromptList",
            display_name="Prompt List (Stepwise GRPO)",
            category=CATEGORY,
            description="Takes a few prompts of your list for each iteration, in a shuffled order, and goes through the whole list again and again.",
            inputs=[
                io.Clip.Input("clip", tooltip="The text encoder of the model you fine-tune."),
                io.String.Input("prompts", multiline=True, default="", tooltip="One prompt a line. Blank lines and lines that start with # are left out."),
                io.Int.Input("prompts_per_iteration", default=4, min=1, max=1024, tooltip="How many different prompts an iteration works on. Each gets a group of pictures of its own."),
                io.Int.Input("iteration", default=0, min=0, max=MAX_SEED, control_after_generate=COUNTS_UP, tooltip="Position in the list. Set the control to 'increment', so that each Queue takes the next prompts."),
                io.Int.Input("seed", default=0, min=0, max=MAX_SEED, control_after_generate=False, tooltip="Decides the shuffled order. Keep it for the whole run."),
            ],
            outputs=[
                io.Conditioning.Output("positive", display_name="positive", tooltip="One entry a prompt, each with its number in the list. For Stepwise SDE Sampler; a stock KSampler would blend the prompts into one picture."),
                io.String.Output("chosen_prompts", display_name="prompts", tooltip="The chosen prompts, one a line."),
            ],
        )

    @classmethod
    def validate_inputs(cls, prompts: str | None) -> bool | str:
        try:
            return prompts is None or bool(prompt_lines(prompts))
        except ValueError as error:
            return str(error)

    @classmethod
    def execute(cls, clip: Any, prompts: str, prompts_per_iteration: int, iteration: int, seed: int) -> io.NodeOutput:
        lines = prompt_lines(prompts)
        chosen = choose(len(lines), prompts_per_iteration, iteration, seed)
        encode = lambda text: clip.encode_from_tokens_scheduled(clip.tokenize(text))
        entries = [entry for i in chosen for entry in tagged(encode(lines[i]), lines[i], i)]
        return io.NodeOutput(entries, "\n".join(lines[i] for i in chosen))


NODES = [PromptList]
