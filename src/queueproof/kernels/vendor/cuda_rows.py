"""From logits to tokens with PyTorch's argmax, logsumexp, sort and topk. The noise is that of docs/arithmetic.md, section 6."""

from __future__ import annotations

import numpy as np
import torch

from queueproof.kernels.host import Finished
from queueproof.kernels.ops import F32, Draw, DrawBatch, Drawn, Edits, Masks

_MASK = 0xFFFFFFFF


class CudaVendorRows:
    def draw(self, logits: torch.Tensor, batch: DrawBatch) -> Draw:
        return Finished(_drawn(logits, batch))

    def host(self, logits: torch.Tensor) -> F32:
        values: F32 = logits.cpu().numpy()
        return values


@torch.inference_mode()
def _drawn(logits: torch.Tensor, batch: DrawBatch) -> Drawn:
    tokens = np.where(batch.tokens >= 0, batch.tokens, 0).astype(np.int64)
    token = torch.from_numpy(tokens).to(logits.device)
    to_draw = np.flatnonzero(batch.tokens < 0)
    greedy = to_draw[batch.temperature[to_draw] == 0]
    sampled = to_draw[batch.temperature[to_draw] > 0]
    drawn_from = logits if batch.edits is None else _edited(logits, batch.edits)
    if batch.masks is not None:
        drawn_from = _masked(drawn_from, batch.masks)
    if greedy.size:
        rows = torch.from_numpy(greedy).to(logits.device)
        token[rows] = drawn_from[rows].argmax(dim=1)
    if sampled.size:
        rows = torch.from_numpy(sampled).to(logits.device)
        token[rows] = _sample(drawn_from[rows], batch, sampled)
    lse = logits.logsumexp(dim=1)
    own = logits.gather(1, token[:, None])
    unusable = logits.isnan().any(dim=1)
    ids = torch.where(unusable, -1, token).int().cpu().numpy()
    logprobs = (own[:, 0] - lse).cpu().numpy()
    if batch.top is None:
        return Drawn(ids, logprobs, lse.cpu().numpy())
    earlier = torch.arange(logits.shape[1], device=logits.device) < token[:, None]
    ranks = 1 + ((logits > own) | ((logits == own) & earlier)).sum(dim=1)
    values, best_ids = logits.topk(min(batch.top, logits.shape[1]), dim=1)
    return Drawn(
        ids,
        logprobs,
        lse.cpu().numpy(),
        ranks.int().cpu().numpy(),
        best_ids.int().cpu().numpy(),
        (values - lse[:, None]).cpu().numpy(),
    )


def _edited(logits: torch.Tensor, edits: Edits) -> torch.Tensor:
    rows, ids, bias, repetition, frequency, presence, banned = (
        torch.from_numpy(values).to(logits.device)
        for values in (
            edits.rows.astype(np.int64),
            edits.ids.astype(np.int64),
            edits.bias,
            edits.repetition,
            edits.frequency,
            edits.presence,
            edits.banned,
        )
    )
    x = logits[rows, ids] + bias
    x = torch.where(x > 0, x / repetition, x * repetition) - frequency - presence
    edited = logits.clone()
    edited[rows, ids] = x.masked_fill(banned, -torch.inf)
    return edited


def _masked(logits: torch.Tensor, masks: Masks) -> torch.Tensor:
    rows = torch.from_numpy(masks.rows.astype(np.int64)).to(logits.device)
    words = torch.from_numpy(masks.allowed.view(np.int32)).to(logits.device)
    ids = torch.arange(logits.shape[1], device=logits.device)
    allowed = (words[:, ids // 32] >> (ids % 32)) & 1 == 1
    masked = logits.clone()
    masked[rows] = masked[rows].masked_fill(~allowed, -torch.inf)
    return masked


def _sample(logits: torch.Tensor, batch: DrawBatch, rows: np.ndarray) -> torch.Tensor:
    """i64 [R]: a token for each row of `logits`, which are those `rows` of the batch."""

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values[rows]).to(logits.device)[:, None]

    z = logits / column(batch.temperature)
    e = (z - z.amax(dim=1, keepdim=True)).exp()
    kept = e >= column(batch.min_p)  # the best one stays: its e is 1
    if (batch.top_k[rows] > 0).any() or (batch.top_p[rows] < 1).any():
        order = z.argsort(dim=1, descending=True, stable=True)
        top_k, top_p = column(batch.top_k), column(batch.top_p)
        kept = kept.gather(1, order)
        kept &= (top_k == 0) | (torch.arange(z.shape[1], device=z.device) < top_k)
        running = (e.gather(1, order) * kept).cumsum(dim=1)
        before = torch.nn.functional.pad(running[:, :-1], (1, 0))
        kept &= (top_p >= 1) | (before < top_p * running[:, -1:])
        kept = torch.zeros_like(kept).scatter(1, order, kept)
    noise = torch.stack([_gumbel(z.shape[1], int(batch.seed[r]), int(batch.position[r]), z.device) for r in rows])
    return torch.where(kept, z + noise, -torch.inf).argmax(dim=1)


def _gumbel(vocab_size: int, seed: int, position: int, device: torch.device) -> torch.Tensor:
    """f32 [V] of Gumbel noise for the token at `position`: Philox4x32-10, a word of it for each token."""
    c0 = torch.arange(-(-vocab_size // 4), dtype=torch.int64, device=device)
    c1, c2 = torch.full_like(c0, position & _MASK), torch.full_like(c0, position >> 32)
    c3 = torch.zeros_like(c0)
    k0, k1 = seed & _MASK, seed >> 32
    for _ in range(10):
        # Products of 32-bit numbers may wrap into the sign: the bits are right, and the shift's sign is masked away.
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((product1 >> 32) & _MASK) ^ c1 ^ k0, product1 & _MASK
        c2, c3 = ((product0 >> 32) & _MASK) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    words = torch.stack([c0, c1, c2, c3], dim=1).ravel()[:vocab_size]
    u = ((words >> 9).float() + 0.5) * 2.0**-23
    return -(-u.log()).log()
