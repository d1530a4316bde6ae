"""Models of transformers with random weights, computed step by step ("eager")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.attention.models import Size

WORDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def gpt2(size: Size) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": size.width, "n_layer": size.layers, "n_head": size.heads, "n_positions": size.length}
    return GPT2LMHeadModel(GPT2Config(vocab_size=size.words, **sizes, **WORDS, attn_implementation="eager"))


def bert(size: Size) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**_sizes(size), attn_implementation="eager"))


def llama(size: Size) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    grouped = {"num_key_value_heads": size.heads // 2}
    return LlamaForCausalLM(LlamaConfig(**_sizes(size), **grouped, **WORDS, attn_implementation="eager"))


def t5(size: Size) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": size.width, "d_kv": size.width // size.heads, "d_ff": 4 * size.width}
    sizes |= {"num_layers": size.layers // 2, "num_heads": size.heads, "vocab_size": size.words}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, attn_implementation="eager"))


def bloom(size: Size) -> nn.Module:
    from transformers import BloomConfig, BloomForCausalLM

    sizes = {"hidden_size": size.width, "n_layer": size.layers, "n_head": size.heads}
    return BloomForCausalLM(BloomConfig(vocab_size=size.words, **sizes, **WORDS))


def gptj(size: Size) -> nn.Module:
    from transformers import GPTJConfig, GPTJForCausalLM

    sizes = {"n_embd": size.width, "n_layer": size.layers, "n_head": size.heads, "n_positions": size.length}
    return GPTJForCausalLM(GPTJConfig(vocab_size=size.words, rotary_dim=16, **sizes, **WORDS))


def _sizes(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": size.words,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.width,
        "max_position_embeddings": size.length,
    }


LIBRARY: dict[str, Callable[[Size], nn.Module]] = {
    "GPT-2 (transformers)": gpt2,
    "BERT (transformers)": bert,
    "Llama (transformers)": llama,
    "T5 (transformers)": t5,
    "BLOOM (transformers)": bloom,
    "GPT-J (transformers)": gptj,
}
