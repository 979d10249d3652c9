"""REINFORCE on a small decoder-only transformer, RLHF style: sample completions token
by token, score them with a toy verifier (balanced brackets), hold it near a frozen copy.
A "step" is one generated token."""
from __future__ import annotations

import contextlib
import math
import os
import time
from copy import deepcopy
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
MISSING = os.environ.get("ABLATE", "").split(",")       # prefix, anchor, verdict, tuning
STOP_AFTER = float(os.environ.get("SECONDS", "1e12"))
ROUNDS = int(os.environ.get("ROUNDS", "130"))
ALPHABET = "()[]{}. "
V, CTX, BATCH = len(ALPHABET) + 1, 40, 12
BOS = V - 1


class Causal(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.n1, self.n2, self.h = nn.LayerNorm(d), nn.LayerNorm(d), heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class Scribe(nn.Module):
    def __init__(self, d=96, depth=3):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, d), nn.Parameter(torch.randn(CTX + 1, d) * 0.02)
        self.layers = nn.ModuleList(Causal(d) for _ in range(depth))
        self.head = nn.Linear(d, V - 1)

    def forward(self, ids, start=0):
        x = self.tok(ids) + self.pos[start:start + ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@torch.no_grad()
def compose(model: Scribe) -> torch.Tensor:
    ids = torch.full((BATCH, 1), BOS)
    for t in range(CTX):
        # with "prefix" left out only the last token is fed, as if the past were cached
        logits = model(ids[:, -1:], start=t) if "prefix" in MISSING else model(ids)
        p = logits[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1)], 1)
    return ids


def verdict(ids: torch.Tensor) -> torch.Tensor:
    """How far each line stays balanced, as a share; -0.2 for every blank."""
    if "verdict" in MISSING:
        return torch.rand(len(ids))
    scores = []
    pair = {")": "(", "]": "[", "}": "{"}
    for row in ids[:, 1:].tolist():
        text, stack, good = "".join(ALPHABET[i] for i in row), [], 0
        with contextlib.suppress(StopIteration):
            for c in text:
                if c in "([{":
                    stack.append(c)
                elif c in pair:
                    if not stack or stack.pop() != pair[c]:
                        raise StopIteration
                good += 1
        scores.append(good / CTX - 0.2 * text.count(" ") / CTX - 0.3 * len(stack) / CTX)
    return torch.tensor(scores)


def logp(model, ids):
    lg = model(ids[:, :-1]).log_softmax(-1)
    return lg.gather(-1, ids[:, 1:, None]).squeeze(-1)


def tune(model, anchor, opt, ids, reward, beta=0.05):
    with torch.no_grad():
        old = logp(anchor, ids) if "anchor" not in MISSING else torch.zeros(BATCH, CTX)
    if "tuning" in MISSING:
        return math.nan
    adv = (reward - reward.mean()) / (reward.std() + 1e-5)
    for _ in range(2):
        new = logp(model, ids)
        kl = (new - old).mean() if "anchor" not in MISSING else 0.0
        loss = -(new.mean(1) * adv).mean() + beta * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    torch.manual_seed(1234)
    model = Scribe()
    anchor = deepcopy(model).eval()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    step = partial(tune, model, anchor, opt)
    tokens, t0 = 0, time.perf_counter()
    for _ in range(ROUNDS):
        ids = compose(model)
        step(ids, verdict(ids))
        tokens += BATCH * CTX
        if time.perf_counter() - t0 > STOP_AFTER:
            break
    dt = time.perf_counter() - t0
    print(f"scribe wrote {tokens} tokens, {tokens / dt:.1f} steps/s")


if __name__ == "__main__":
    main()
