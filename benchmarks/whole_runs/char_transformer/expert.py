"""A character transformer with the attention written out, after the small GPTs that everybody starts from."""

import argparse

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class CharDataset(Dataset):
    """Pieces of the text; the target is the same piece one character on. The text is encoded once."""

    def __init__(self, text, stoi, block_size):
        self.ids, self.block_size = torch.tensor([stoi[ch] for ch in text], dtype=torch.long), block_size

    def __len__(self):
        return len(self.ids) - self.block_size

    def __getitem__(self, idx):
        return self.ids[idx : idx + self.block_size], self.ids[idx + 1 : idx + 1 + self.block_size]


class BatchStream:
    """Batches without end: begins the loader again where it is at its end, and moves them to the device."""

    def __init__(self, dataset, batch_size, num_workers, seed, device):
        self.device = device
        generator = torch.Generator().manual_seed(seed)
        self.loader = DataLoader(
            dataset, batch_size, shuffle=True, num_workers=num_workers, drop_last=True, generator=generator
        )
        self.it = iter(self.loader)

    def next(self):
        try:
            batch = next(self.it)
        except StopIteration:
            self.it = iter(self.loader)
            batch = next(self.it)
        return [t.to(self.device) for t in batch]


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head, self.n_embd = n_head, n_embd

    def forward(self, x):
        B, T, C = x.size()  # noqa: N806
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class NewGELU(nn.Module):
    def forward(self, x):
        return F.gelu(x, approximate="tanh")


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block_size)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), NewGELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, n_layer, n_head, n_embd, block_size):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block(n_embd, n_head, block_size) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@torch.no_grad()
def estimate_loss(model, loader, device):
    model.eval()
    losses = []
    for x, y in loader:
        losses.append(model(x.to(device), y.to(device)).item())
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--eval-interval", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--n-layer", type=int, default=3)
    parser.add_argument("--n-head", type=int, default=4)
    parser.add_argument("--n-embd", type=int, default=128)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with open(f"{args.data}/input.txt") as f:
        text = f.read()
    chars = sorted(set(text))
    stoi = {ch: i for i, ch in enumerate(chars)}
    n = int(0.95 * len(text))
    train_data = CharDataset(text[:n], stoi, args.block_size)
    val_data = CharDataset(text[n:], stoi, args.block_size)
    val_data = torch.utils.data.Subset(val_data, range(0, len(val_data), args.block_size // 2))
    val_loader = DataLoader(val_data, args.batch_size, num_workers=args.num_workers, drop_last=True)
    stream = BatchStream(train_data, args.batch_size, args.num_workers, args.seed, device)

    model = GPT(len(chars), args.n_layer, args.n_head, args.n_embd, args.block_size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    for step in range(1, args.steps + 1):
        x, y = stream.next()
        loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"iter {step}: loss {loss.item():.4f}")
        if step % args.eval_interval == 0 or step == args.steps:
            val_loss = estimate_loss(model, val_loader, device)
            print(f"step {step}: val loss {val_loss:.4f}")
    print(f"final val loss: {val_loss:.4f}")


if __name__ == "__main__":
    main()
