"""Loading needs at most 1.6 times the size of the 16-bit weights: the packed copy, and slices of the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant

from queueproof.models.hf_config import from_hf, read_files
from queueproof.models.weights.expected import expected_shapes
from tests.support.checkpoints import Checkpoint, checkpoint, write_gguf, write_hf

# Loads a model with a packer that keeps 16-bit copies, and prints how far resident memory rose above what it was.
# VmHWM counts pages of mapped files too, so a map that is not released shows.
PROGRAM = """
import json, sys
import numpy as np
import queueproof.models.loader as loader

class Packer:
    def matrix(self, n, k, row_slices, bias=None):
        out = np.empty((n, k), np.uint16)
        row = 0
        for rows in row_slices:
            out[row:row + len(rows)] = rows
            row += len(rows)
        assert row == n
        return out
    def vector(self, values):
        return values
    def rope(self, cos, sin):
        return cos, sin

class Backend:
    arithmetic, device = "vendor", "cpu"
    def warm_up(self, progress):
        pass
    def packer(self, dtype):
        return Packer()

def kib(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

loader.load_model(sys.argv[1], Backend())  # a tiny one: whatever is imported or compiled on first use
open("/proc/self/clear_refs", "w").write("5")  # VmHWM back to what is resident now
before = kib("VmRSS")
model = loader.load_model(sys.argv[2], Backend())
print(json.dumps((kib("VmHWM") - before) * 1024))
"""


@pytest.fixture(scope="module")
def large() -> Checkpoint:
    """About 120 MB in 16 bits."""
    shape = {"hidden_size": 1536, "intermediate_size": 4096, "num_attention_heads": 24, "head_dim": 64}
    c = checkpoint(tied=True).changed(**shape, num_key_value_heads=8)
    rng = np.random.default_rng(0)
    for name, dims in sized(c).items():
        c.weights[name] = rng.standard_normal(dims, np.float32)
    return c


def sized(c: Checkpoint) -> dict[str, tuple[int, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(c.config))
        return expected_shapes(from_hf(read_files(Path(folder)), "bfloat16"))


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads /proc/self/status and resets VmHWM: Linux"
)
@pytest.mark.parametrize("form", ["float32", "bfloat16", "F32.gguf", "Q8_0.gguf", "Q4_1.gguf"])
def test_peak_memory(form: str, large: Checkpoint, tmp_path: Path) -> None:
    small = write_gguf(checkpoint(), tmp_path / "small.gguf")
    if form.endswith("gguf"):
        path = write_gguf(large, tmp_path / form, Quant[form.split(".")[0]])
    else:
        path = write_hf(large, tmp_path / "hf", dtype=form)
    command = [sys.executable, "-c", PROGRAM, str(small), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    weights = 2 * sum(int(np.prod(w.shape)) for w in large.weights.values())
    assert weights > 80e6
    assert 1.0 <= int(result.stdout) / weights <= 1.6
