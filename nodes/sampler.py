"""Stepwise SDE: the same random steps as a SAMPLER for the stock custom sampler nodes."""

from comfy_api.latest import io

from ..training.core.transitions import LAWS, resolve_eta
from .convert import stochastic_sampler
from .rollout import ETA, LAW
from .search_words import schema
from .sockets import CATEGORY, MAX_SEED
from .validate import law_and_eta


class StepwiseSDE(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_StepwiseSDE",
            display_name="Stepwise SDE (Stepwise GRPO sampler)",
            category=CATEGORY,
            description="The random steps of the rollout as a SAMPLER for SamplerCustom and SamplerCustomAdvanced, to see what they look like. For flow models and full schedules (denoise 1).",
            inputs=[
                io.Combo.Input("law", options=list(LAWS), default="ddim", tooltip=LAW),
                io.Float.Input("eta", default=-1.0, min=-1.0, max=4.0, step=0.05, round=0.01, tooltip=ETA),
                io.Int.Input("seed", default=0, min=0, max=MAX_SEED, control_after_generate=True, tooltip="Decides the noise of the steps. The noise at the start is the sampler node's own."),
            ],
            outputs=[io.Sampler.Output("sampler", display_name="SAMPLER", tooltip="For SamplerCustom or SamplerCustomAdvanced.")],
        )

    @classmethod
    def validate_inputs(cls, law: str | None, eta: float | None) -> bool | str:
        return law_and_eta(law, eta)

    @classmethod
    def execute(cls, law: str, eta: float, seed: int) -> io.NodeOutput:
        return io.NodeOutput(stochastic_sampler(law, resolve_eta(law, eta), seed))


NODES = [StepwiseSDE]
