"""Tiny random diffusers pipelines, whole with encoders, tokenizers and VAE, as local folders. Imports diffusers only when asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

TOKENS = 8
PIXELS = 2  # of a picture for one latent, of the VAEs here
WORDS = "a red blue green cube ball on the table left right of and".split()


def tokenizer() -> Any:
    """Whole words; what it does not know is one unknown token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=TOKENS, chat_template=template
    )


def _clip(projection: bool) -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=TOKENS,
        projection_dim=16, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)


def _t5(kind: str, width: int) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=32, d_model=width, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    return getattr(transformers, f"{kind}EncoderModel")(config)


def _qwen3(width: int) -> nn.Module:
    from transformers import Qwen3Config, Qwen3Model

    return Qwen3Model(
        Qwen3Config(vocab_size=32, hidden_size=width, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16)
    )


def _qwen_vl(width: int) -> nn.Module:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = dict(
        vocab_size=64, hidden_size=width, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
    )  # fmt: skip
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=width, window_size=8, fullatt_block_indexes=[0])
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))


def _vae() -> nn.Module:
    from diffusers import AutoencoderKL

    blocks = dict(down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2, block_out_channels=[4, 8], norm_num_groups=2)
    return AutoencoderKL(latent_channels=16, scaling_factor=1.5, shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False, layers_per_block=1, **blocks)


def _video_vae(kind: str) -> nn.Module:
    import diffusers

    scales = dict(latents_mean=[0.1] * 16, latents_std=[2.0] * 16)
    more = dict(scale_factor_spatial=PIXELS, scale_factor_temporal=2) if kind == "AutoencoderKLWan" else {}
    return getattr(diffusers, kind)(base_dim=8, z_dim=16, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[True], **scales, **more)


def _sd3() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    network = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=16, num_layers=2, attention_head_dim=64, num_attention_heads=2, joint_attention_dim=32,
        caption_projection_dim=128, pooled_projection_dim=32, out_channels=16, pos_embed_max_size=8, dual_attention_layers=(0,), qk_norm="rms_norm",
    )  # fmt: skip
    clips = dict(text_encoder=_clip(True), tokenizer=tokenizer(), text_encoder_2=_clip(True), tokenizer_2=tokenizer())
    return StableDiffusion3Pipeline(
        transformer=network, vae=_vae(), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), **clips, text_encoder_3=_t5("T5", 32), tokenizer_3=tokenizer()
    )


def _flux() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    network = FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
        pooled_projection_dim=16, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    encoders = dict(text_encoder=_clip(False), tokenizer=tokenizer(), text_encoder_2=_t5("T5", 32), tokenizer_2=tokenizer())
    return FluxPipeline(transformer=network, vae=_vae(), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True), **encoders)


def _qwen_image() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline, QwenImageTransformer2DModel

    network = QwenImageTransformer2DModel(
        in_channels=64, out_channels=16, num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, axes_dims_rope=(4, 6, 6)
    )
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.02)
    return QwenImagePipeline(transformer=network, vae=_video_vae("AutoencoderKLQwenImage"), scheduler=scheduler, text_encoder=_qwen_vl(32), tokenizer=tokenizer())


def _z_image() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel

    network = ZImageTransformer2DModel(
        in_channels=16, dim=256, n_layers=2, n_refiner_layers=1, n_heads=16, n_kv_heads=16, cap_feat_dim=32, axes_dims=[4, 6, 6], axes_lens=[512, 64, 64]
    )
    return ZImagePipeline(
        transformer=network, vae=_vae(), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), text_encoder=_qwen3(32), tokenizer=tokenizer()
    )


def _wan() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel

    network = WanTransformer3DModel(
        num_attention_heads=1, attention_head_dim=128, in_channels=16, out_channels=16, text_dim=4096, freq_dim=256, ffn_dim=64, num_layers=2,
        cross_attn_norm=True, rope_max_seq_len=64,
    )  # fmt: skip
    return WanPipeline(
        transformer=network, vae=_video_vae("AutoencoderKLWan"), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), text_encoder=_t5("UMT5", 4096), tokenizer=tokenizer()
    )


PIPELINES: dict[str, Callable[[], Any]] = {"sd3": _sd3, "flux": _flux, "qwen_image": _qwen_image, "z_image": _z_image, "wan": _wan}


def make(name: str, seed: int = 0) -> Any:
    """The pipeline, its random network with outputs of order 1."""
    torch.manual_seed(seed)
    pipeline = PIPELINES[name]()
    pipeline.set_progress_bar_config(disable=True)
    for part in pipeline.components.values():
        if isinstance(part, nn.Module):
            part.eval()  # as when loaded from a folder: T5 has dropout
    with torch.no_grad():
        for key, weight in pipeline.transformer.named_parameters():
            spread = 0.7 / weight[0].numel() ** 0.5 if weight.dim() > 1 else 0.08
            weight.copy_(torch.randn(weight.shape) * spread + (1 if weight.dim() == 1 and "norm" in key and key.endswith("weight") else 0))
    return pipeline


def save(name: str, folder: Path, seed: int = 0) -> Path:
    """The pipeline as a local folder."""
    make(name, seed).save_pretrained(str(folder))
    return folder
