"""From logits to tokens with PyTorch's argmax, logsumexp and topk. Rows that are sampled go to NumPy (rows.py)."""

from __future__ import annotations

import numpy as np
import torch

from queueproof.kernels.host import Finished
from queueproof.kernels.ops import F32, Draw, DrawBatch, Drawn
from queueproof.kernels.vendor.rows import VendorRows


class CudaVendorRows:
    def draw(self, logits: torch.Tensor, batch: DrawBatch) -> Draw:
        if batch.edits is not None or ((batch.temperature > 0) & (batch.tokens < 0)).any():
            return VendorRows().draw(self.host(logits), batch)
        return Finished(_greedy(logits, torch.from_numpy(batch.tokens.astype(np.int64)).to(logits.device), batch.top))

    def host(self, logits: torch.Tensor) -> F32:
        values: F32 = logits.cpu().numpy()
        return values


@torch.inference_mode()
def _greedy(logits: torch.Tensor, wanted: torch.Tensor, top: int | None) -> Drawn:
    best = logits.argmax(dim=1)
    token = torch.where(wanted >= 0, wanted, best)
    lse = logits.logsumexp(dim=1)
    own = logits.gather(1, token[:, None])
    unusable = logits.isnan().any(dim=1)
    ids = torch.where(unusable, -1, token).int().cpu().numpy()
    logprobs = (own[:, 0] - lse).cpu().numpy()
    if top is None:
        return Drawn(ids, logprobs, lse.cpu().numpy())
    earlier = torch.arange(logits.shape[1], device=logits.device) < token[:, None]
    ranks = 1 + ((logits > own) | ((logits == own) & earlier)).sum(dim=1)
    values, best_ids = logits.topk(min(top, logits.shape[1]), dim=1)
    return Drawn(
        ids,
        logprobs,
        lse.cpu().numpy(),
        ranks.int().cpu().numpy(),
        best_ids.int().cpu().numpy(),
        (values - lse[:, None]).cpu().numpy(),
    )
