"""Models of HuggingFace transformers at reduced size, with seeded random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

VOCABULARY, LENGTH, IMAGE = 1000, 17, 64


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


# What most configurations call their sizes.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER: dict[str, Any] = {**SIZES, **TOKENS, "num_key_value_heads": 2}
VISION: dict[str, Any] = {**without(SIZES, "vocab_size"), "image_size": IMAGE, "patch_size": 16}

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Entry:
    """How to build a model, and what it is called with."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    dtype: torch.dtype = torch.float16  # on the card


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length))


def text() -> Inputs:
    return {"input_ids": tokens()}


def image() -> Inputs:
    return {"pixel_values": torch.randn(2, 3, IMAGE, IMAGE)}


def of(name: str, config: str, inputs: Callable[[], Inputs] = text, **settings: Any) -> Entry:
    return Entry(lambda: getattr(hf, name)(getattr(hf, config)(**settings)), inputs)


def _whisper() -> nn.Module:
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=128,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        max_source_positions=50,
        decoder_start_token_id=1,
        **TOKENS,
    )
    return hf.WhisperModel(config).get_encoder()


def _mamba_hybrid() -> nn.Module:
    config = hf.GraniteMoeHybridConfig(
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=256,
        layer_types=["mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_n_groups=1,
        mamba_expand=2,
        mamba_chunk_size=16,
        **DECODER,
    )
    return hf.GraniteMoeHybridForCausalLM(config)


CAUSAL: dict[str, Entry] = {
    "granite": of("GraniteForCausalLM", "GraniteConfig", **DECODER),
    "llama": of("LlamaForCausalLM", "LlamaConfig", **DECODER),
    "qwen3": of("Qwen3ForCausalLM", "Qwen3Config", head_dim=32, **DECODER),
    "mistral": of("MistralForCausalLM", "MistralConfig", **DECODER),
    "phi3": of("Phi3ForCausalLM", "Phi3Config", **DECODER),
    "gemma2": of("Gemma2ForCausalLM", "Gemma2Config", head_dim=32, **DECODER),
    "gemma3": of("Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=32, **DECODER),
    "gpt2": of(
        "GPT2LMHeadModel",
        "GPT2Config",
        vocab_size=VOCABULARY,
        n_embd=128,
        n_layer=2,
        n_head=4,
        **TOKENS,
    ),
    "olmo2": of("Olmo2ForCausalLM", "Olmo2Config", **DECODER),
    "gpt-oss": of(
        "GptOssForCausalLM",
        "GptOssConfig",
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        **DECODER,
    ),
    "granite-4 hybrid": Entry(_mamba_hybrid, text),
}

NAMED = ("granite", "llama", "qwen3")  # for tests that would be slow with all

OTHERS: dict[str, Entry] = {
    "bert": of("BertModel", "BertConfig", **SIZES),
    "roberta": of("RobertaModel", "RobertaConfig", **SIZES),
    "mpnet": of("MPNetModel", "MPNetConfig", **SIZES),
    "modernbert": of(
        "ModernBertModel",
        "ModernBertConfig",
        cls_token_id=1,
        sep_token_id=2,
        **SIZES,
        **TOKENS,
    ),
    "distilbert": of(
        "DistilBertModel",
        "DistilBertConfig",
        vocab_size=VOCABULARY,
        dim=128,
        n_layers=2,
        n_heads=4,
        hidden_dim=256,
    ),
    "t5": of(
        "T5Model",
        "T5Config",
        lambda: {**text(), "decoder_input_ids": tokens(9)},
        vocab_size=VOCABULARY,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
    ),
    "vit": of("ViTModel", "ViTConfig", image, **VISION),
    "clip": of(
        "CLIPModel",
        "CLIPConfig",
        lambda: {**text(), **image()},
        text_config={**SIZES, **TOKENS, "max_position_embeddings": 32},
        vision_config=VISION,
    ),
    "whisper encoder": Entry(_whisper, lambda: {"input_features": torch.randn(2, 80, 100)}),
}

ZOO = {**CAUSAL, **OTHERS}


def answer(outputs: Any) -> torch.Tensor:
    """What a model is called for: logits, or embeddings."""
    for name in ("logits", "logits_per_text", "last_hidden_state"):
        value = getattr(outputs, name, None)
        if value is not None:
            return value
    raise TypeError(f"{type(outputs).__name__} has neither logits nor hidden states")
