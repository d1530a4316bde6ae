"""Attention as public models spell it, each in a few lines of its own, at any size.

Every spelling is one layer that maps ``(batch, length, width)`` to the same; ``Model`` stacks them with embeddings and
a head, so that a batch of tokens trains it. Those of transformers are the library's own models with random weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Size:
    """Width, heads, layers, length of a sequence, sequences in a batch, and words."""

    width: int = 32
    heads: int = 4
    layers: int = 2
    length: int = 16
    batch: int = 3
    words: int = 50
    dropout: float = 0.0


class NanoGPT(nn.Module):
    """The slow path of nanoGPT: a generator over one projection's parts, a flag, a buffer sliced by length."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.c_attn = nn.Linear(size.width, 3 * size.width)
        self.c_proj = nn.Linear(size.width, size.width)
        self.attn_dropout, self.resid_dropout = nn.Dropout(size.dropout), nn.Dropout(size.dropout)
        self.n_head, self.n_embd, self.flash = size.heads, size.width, False
        self.register_buffer("bias", torch.ones(size.length, size.length).tril()[None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.size()
        parts = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2) for t in parts)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
            y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return self.resid_dropout(self.c_proj(y))


class MinGPT(nn.Module):
    """minGPT: three projections, and a mask that is a buffer of ones."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.key, self.query, self.value, self.proj = (nn.Linear(size.width, size.width) for _ in range(4))
        self.attn_drop, self.resid_drop = nn.Dropout(size.dropout), nn.Dropout(size.dropout)
        self.register_buffer(
            "mask", torch.tril(torch.ones(size.length, size.length)).view(1, 1, size.length, size.length)
        )
        self.n_head = size.heads

    def forward(self, x: torch.Tensor, layer_past: Any = None) -> torch.Tensor:
        B, T, C = x.size()  # noqa: N806
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, -1e10)
        att = self.attn_drop(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_drop(self.proj(y))


class TimmViT(nn.Module):
    """A vision transformer as timm spells it unfused: one projection unbound, the scale on the queries."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.num_heads, self.head_dim = size.heads, size.width // size.heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(size.width, size.width * 3)
        self.q_norm, self.k_norm = nn.Identity(), nn.LayerNorm(self.head_dim)
        self.attn_drop, self.proj_drop = nn.Dropout(size.dropout), nn.Dropout(size.dropout)
        self.proj = nn.Linear(size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, N, C = x.shape  # noqa: N806
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class Bert(nn.Module):
    """BERT as first written for PyTorch: padding as a large negative number that is added; it returns a tuple."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.size = size.heads, size.width // size.heads
        self.query, self.key, self.value = (nn.Linear(size.width, size.width) for _ in range(3))
        self.dropout = nn.Dropout(size.dropout)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.size()[:-1], self.heads, self.size).permute(0, 2, 1, 3)

    def attend(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, output_attentions: bool = False
    ) -> tuple[Any, ...]:
        q, k, v = (self.transpose_for_scores(layer(hidden)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size)
        if mask is not None:
            scores = scores + mask
        probs = self.dropout(nn.Softmax(dim=-1)(scores))
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        context = context.view(*context.size()[:-2], self.heads * self.size)
        return (context, probs) if output_attentions else (context,)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        padding = torch.arange(hidden.shape[1], device=hidden.device) < hidden.shape[1] - 2
        keep = padding[None].expand(hidden.shape[0], -1).to(hidden.dtype)
        context: torch.Tensor = self.attend(hidden, (1.0 - keep[:, None, None, :]) * -10000.0)[0]
        return context


class T5(nn.Module):
    """T5: no scale, a learned bias of relative positions, the softmax in float32."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.inner = size.heads, size.width // size.heads
        self.q, self.k, self.v, self.o = (nn.Linear(size.width, size.width, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(2 * 8 + 1, size.heads)
        self.dropout = size.dropout

    def compute_bias(self, query_length: int, key_length: int) -> torch.Tensor:
        device = self.relative_attention_bias.weight.device
        context = torch.arange(query_length, device=device)[:, None]
        memory = torch.arange(key_length, device=device)[None, :]
        buckets = (memory - context).clamp(-8, 8) + 8
        bias: torch.Tensor = self.relative_attention_bias(buckets)
        return bias.permute([2, 0, 1]).unsqueeze(0)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length = hidden.shape[:2]

        def shape(states: torch.Tensor) -> torch.Tensor:
            return states.view(batch, -1, self.heads, self.inner).transpose(1, 2)

        q, k, v = shape(self.q(hidden)), shape(self.k(hidden)), shape(self.v(hidden))
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += self.compute_bias(length, length)
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        weights = F.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(batch, -1, self.heads * self.inner)
        return self.o(out)


class Alibi(nn.Module):
    """ALiBi by ``baddbmm`` over batch and heads as one dimension, as BLOOM spells it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.inner = size.heads, size.width // size.heads
        self.query_key_value = nn.Linear(size.width, 3 * size.width)
        self.dense = nn.Linear(size.width, size.width)
        self.slopes = 2.0 ** -(8.0 * torch.arange(1, size.heads + 1) / size.heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        fused = self.query_key_value(x).view(batch, length, self.heads, 3, self.inner)
        q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]
        q = q.transpose(1, 2).reshape(batch * self.heads, length, self.inner)
        k = k.permute(0, 2, 3, 1).reshape(batch * self.heads, self.inner, length)
        v = v.transpose(1, 2).reshape(batch * self.heads, length, self.inner)
        alibi = self.slopes.to(x.device)[None, :, None, None] * torch.arange(length, device=x.device)
        alibi = alibi.expand(batch, -1, -1, -1).reshape(batch * self.heads, 1, length)
        scores = alibi.baddbmm(batch1=q, batch2=k, beta=1.0, alpha=1.0 / math.sqrt(self.inner))
        scores = scores.view(batch, self.heads, length, length)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = torch.masked_fill(scores, future, torch.finfo(scores.dtype).min)
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        context = torch.bmm(probs.view(batch * self.heads, length, length), v)
        context = context.view(batch, self.heads, length, self.inner).permute(0, 2, 1, 3)
        return self.dense(context.reshape(batch, length, width))


class Rotary(nn.Module):
    """Rotary positions as in Llama, and a causal mask that is added."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.inner = size.heads, size.width // size.heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(size.width, size.width, bias=False) for _ in range(4)
        )
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, self.inner, 2) / self.inner), persistent=False)

    @torch.no_grad()
    def angles(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.outer(torch.arange(length, device=self.inv_freq.device).float(), self.inv_freq)
        emb = torch.cat((both, both), dim=-1)
        return emb.cos()[None, None], emb.sin()[None, None]

    @staticmethod
    def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        one, two = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x * cos + torch.cat((-two, one), dim=-1) * sin

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.size()
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = [layer(hidden).view(batch, length, self.heads, self.inner).transpose(1, 2) for layer in layers]
        cos, sin = self.angles(length)
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        weights = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.inner)
        mask = torch.full((length, length), float("-inf"), device=hidden.device)
        weights = weights + torch.triu(mask, diagonal=1)
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, -1))


class GroupedQuery(nn.Module):
    """Fewer heads of keys than of queries, as einsums over groups."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.groups, self.kv_heads, self.inner = 2, size.heads // 2, size.width // size.heads
        self.q = nn.Linear(size.width, size.width)
        self.kv = nn.Linear(size.width, 2 * self.kv_heads * self.inner)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.kv_heads, self.groups, self.inner)
        k, v = self.kv(x).view(batch, length, 2, self.kv_heads, self.inner).unbind(2)
        scores = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.inner**-0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores.masked_fill_(future, float("-inf"))
        mixed = torch.einsum("bhgqk,bkhd->bqhgd", scores.softmax(-1), v)
        return self.out(mixed.flatten(2))


class Cross(nn.Module):
    """Queries from one sequence, keys and values from another one with padding, and a dictionary of options."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.inner = size.heads, size.width // size.heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(size.width, size.width) for _ in range(4))
        self.memory = nn.Parameter(torch.randn(size.length // 2 + 1, size.width))

    def attend(self, x: torch.Tensor, context: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(item).unflatten(-1, (self.heads, self.inner)).transpose(1, 2)
            for layer, item in ((self.to_q, x), (self.to_k, context), (self.to_v, context))
        )
        dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.inner**-0.5
        dots = torch.where(mask[:, None, None, :], dots, torch.tensor(-1e9, device=x.device))
        out = torch.einsum("b h i j, b h j d -> b h i d", dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        context = self.memory.expand(x.shape[0], -1, -1) + x[:, :1]
        keep = torch.ones(context.shape[:2], dtype=torch.bool, device=x.device)
        keep[:, -1] = False
        return self.attend(x, context, keep)


class Swin(nn.Module):
    """Windows of Swin: a bias of relative positions, and a mask for shifted windows between two views."""

    WINDOW = 4

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.inner = size.heads, size.width // size.heads
        self.qkv, self.proj = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.table = nn.Parameter(0.1 * torch.randn(2 * self.WINDOW - 1, size.heads))
        place = torch.arange(self.WINDOW)
        self.register_buffer("index", place[:, None] - place[None, :] + self.WINDOW - 1)
        count = size.length // self.WINDOW
        mask = torch.zeros(count, self.WINDOW, self.WINDOW)
        mask[-1, :2, 2:] = mask[-1, 2:, :2] = -100.0
        self.register_buffer("shifted", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole, n = x.shape, self.WINDOW
        x = x.reshape(-1, n, x.shape[-1])
        windows, _, width = x.shape
        qkv = self.qkv(x).reshape(windows, n, 3, self.heads, self.inner).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.inner**-0.5, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        attn = attn + self.table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        count = self.shifted.shape[0]
        attn = attn.view(windows // count, count, self.heads, n, n) + self.shifted.unsqueeze(1).unsqueeze(0)
        attn = F.softmax(attn.view(-1, self.heads, n, n), dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(windows, n, width)).view(whole)


class Model(nn.Module):
    """Tokens through layers of one spelling, each with a small perceptron, to the next token."""

    def __init__(self, layer: type[nn.Module], size: Size) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(size.words, size.width), nn.Embedding(size.length, size.width)
        self.layers = nn.ModuleList(layer(size) for _ in range(size.layers))  # type: ignore[call-arg]
        self.norms = nn.ModuleList(nn.LayerNorm(size.width) for _ in range(2 * size.layers))
        self.perceptrons = nn.ModuleList(
            nn.Sequential(nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width))
            for _ in range(size.layers)
        )
        self.head = nn.Linear(size.width, size.words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for number, (layer, perceptron) in enumerate(zip(self.layers, self.perceptrons, strict=True)):
            x = x + layer(self.norms[2 * number](x))
            x = x + perceptron(self.norms[2 * number + 1](x))
        return self.head(x)


OWN: dict[str, type[nn.Module]] = {
    "nanogpt": NanoGPT,
    "mingpt": MinGPT,
    "timm_vit": TimmViT,
    "bert": Bert,
    "t5": T5,
    "alibi": Alibi,
    "rotary": Rotary,
    "grouped_query": GroupedQuery,
    "cross": Cross,
    "swin": Swin,
}
