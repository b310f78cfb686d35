"""Models beside those of the zoo, to see that nothing is made for the zoo alone: forward only."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tests.models.zoo import (
    DECODER,
    SIZES,
    TOKENS,
    VISION,
    VOCABULARY,
    Entry,
    Inputs,
    image,
    of,
    text,
    tokens,
    without,
)

_PLAIN = without(SIZES, "intermediate_size")
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
_LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_NARROW_EXPERTS: dict[str, Any] = {**_EXPERTS, "moe_intermediate_size": 64}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
_BOTH_HALVES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    **TOKENS,
}
_STAGES: dict[str, Any] = {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]}


def _both_texts() -> Inputs:
    return {**text(), "decoder_input_ids": tokens(9)}


def _spectrogram() -> Inputs:
    return {"input_features": torch.randn(2, 80, 100), "decoder_input_ids": tokens(9)}


def _sound() -> Inputs:
    return {"input_values": torch.randn(2, 4000)}


def _latent(**settings: Any) -> dict[str, Any]:
    """Sizes of DeepSeek's attention and experts."""
    return {
        **DECODER,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "topk_group": 1,
        **settings,
    }


_DECODERS: dict[str, Entry] = {
    "bamba": of("BambaForCausalLM", "BambaConfig", attn_layer_indices=[1], **_MAMBA, **DECODER),
    "bloom": of("BloomForCausalLM", "BloomConfig", **_PLAIN, **TOKENS),
    "cohere": of("CohereForCausalLM", "CohereConfig", **DECODER),
    "cohere2": of("Cohere2ForCausalLM", "Cohere2Config", **DECODER),
    "deepseek-v3": of("DeepseekV3ForCausalLM", "DeepseekV3Config", **_latent(n_group=2)),
    "falcon": of("FalconForCausalLM", "FalconConfig", **_PLAIN, **TOKENS),
    "falcon, alibi": of("FalconForCausalLM", "FalconConfig", alibi=True, **_PLAIN, **TOKENS),
    "glm4": of("Glm4ForCausalLM", "Glm4Config", head_dim=32, **DECODER),
    "gpt-j": of(
        "GPTJForCausalLM",
        "GPTJConfig",
        vocab_size=VOCABULARY,
        n_embd=128,
        n_layer=2,
        n_head=4,
        rotary_dim=16,
        **TOKENS,
    ),
    "gpt-neox": of("GPTNeoXForCausalLM", "GPTNeoXConfig", **SIZES, **TOKENS),
    "granite-moe": of("GraniteMoeForCausalLM", "GraniteMoeConfig", **_LOCAL_EXPERTS, **DECODER),
    "granite-4 hybrid moe": of(
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        shared_intermediate_size=256,
        layer_types=["mamba", "attention"],
        **_LOCAL_EXPERTS,
        **_MAMBA,
        **DECODER,
    ),
    "mamba": of("MambaForCausalLM", "MambaConfig", state_size=16, **_PLAIN, **TOKENS),
    "mamba2": of(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        state_size=16,
        num_heads=8,
        head_dim=32,
        n_groups=1,
        chunk_size=16,
        **_PLAIN,
        **TOKENS,
    ),
    "mixtral": of("MixtralForCausalLM", "MixtralConfig", **_LOCAL_EXPERTS, **DECODER),
    "olmoe": of("OlmoeForCausalLM", "OlmoeConfig", **_EXPERTS, **DECODER),
    "opt": of(
        "OPTForCausalLM", "OPTConfig", ffn_dim=256, word_embed_proj_dim=128, **_PLAIN, **TOKENS
    ),
    "phi": of("PhiForCausalLM", "PhiConfig", **{**DECODER, "num_key_value_heads": 4}),
    "qwen2": of("Qwen2ForCausalLM", "Qwen2Config", **DECODER),
    "qwen2-moe": of(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        shared_expert_intermediate_size=64,
        **_NARROW_EXPERTS,
        **DECODER,
    ),
    "qwen3-moe": of(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig", head_dim=32, **_NARROW_EXPERTS, **DECODER
    ),
    "smollm3": of("SmolLM3ForCausalLM", "SmolLM3Config", **DECODER),
    "stablelm": of("StableLmForCausalLM", "StableLmConfig", **DECODER),
}

_ENCODERS: dict[str, Entry] = {
    "albert": of("AlbertModel", "AlbertConfig", embedding_size=64, **SIZES),
    "deberta-v2": of(
        "DebertaV2Model",
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        **SIZES,
    ),
    "electra": of("ElectraModel", "ElectraConfig", embedding_size=64, **SIZES),
    "xlm-roberta": of("XLMRobertaModel", "XLMRobertaConfig", **SIZES),
    "xlnet": of(
        "XLNetModel",
        "XLNetConfig",
        vocab_size=VOCABULARY,
        d_model=128,
        n_layer=2,
        n_head=4,
        d_inner=256,
    ),
}

_WITH_BOTH: dict[str, Entry] = {
    # Not in float16, see below.
    "bart": dataclasses.replace(
        of("BartModel", "BartConfig", _both_texts, **_BOTH_HALVES), dtype=torch.float32
    ),
    "mt5": of(
        "MT5Model",
        "MT5Config",
        _both_texts,
        vocab_size=VOCABULARY,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
    ),
    "whisper": of(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _spectrogram,
        max_source_positions=50,
        decoder_start_token_id=1,
        **_BOTH_HALVES,
    ),
}

_SEEING_AND_HEARING: dict[str, Entry] = {
    "convnext": of("ConvNextModel", "ConvNextConfig", image, **_STAGES),
    "deit": of("DeiTModel", "DeiTConfig", image, **VISION),
    "dinov2": of("Dinov2Model", "Dinov2Config", image, **without(VISION, "intermediate_size")),
    "resnet": of("ResNetModel", "ResNetConfig", image, embedding_size=16, **_STAGES),
    "segformer": of(
        "SegformerModel", "SegformerConfig", image, num_attention_heads=[1, 2, 4, 4], **_STAGES
    ),
    "siglip": of("SiglipVisionModel", "SiglipVisionConfig", image, **VISION),
    "swin": of(
        "SwinModel",
        "SwinConfig",
        image,
        image_size=64,
        patch_size=4,
        embed_dim=32,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "wav2vec2": of(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        _sound,
        conv_dim=[32, 32, 32],
        conv_stride=[5, 4, 4],
        conv_kernel=[10, 8, 4],
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        **without(SIZES, "vocab_size"),
    ),
}

# Their rotary embeddings are products of complex numbers, which the card has not: compiled only.
WITH_COMPLEX_NUMBERS: dict[str, Entry] = {
    "deepseek-v2": of(
        "DeepseekV2ForCausalLM", "DeepseekV2Config", **_latent(head_dim=16, n_group=1)
    ),
    "llama-4": of(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        head_dim=32,
        intermediate_size_mlp=256,
        num_local_experts=4,
        **DECODER,
    ),
}

# Their operations are not all the card's, or they branch on their data.
NOT_WHOLE: dict[str, Entry] = {
    "bart, float16": of("BartModel", "BartConfig", _both_texts, **_BOTH_HALVES),
    "qwen3-next": of(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        head_dim=32,
        layer_types=["linear_attention", "full_attention"],
        shared_expert_intermediate_size=64,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        **_NARROW_EXPERTS,
        **DECODER,
    ),
}

FURTHER = {**_DECODERS, **_ENCODERS, **_WITH_BOTH, **_SEEING_AND_HEARING}
