"""Which arithmetic a device has, and what is said where it cannot be used."""

from __future__ import annotations

import sys

import pytest

from queueproof.contract.errors import InvalidParameter, UnsupportedArithmetic, UnsupportedDevice
from queueproof.engine.llm import LLM
from queueproof.kernels import registry


def test_the_default_follows_the_device() -> None:
    assert registry.default_arithmetic("cpu") == "ieee/1" and registry.default_arithmetic("cuda") == "tensorcore/1"
    assert registry.arithmetics_on("cuda") == ("tensorcore/1", "vendor")
    assert registry.backend(None).arithmetic == "ieee/1"
    with pytest.raises(InvalidParameter, match="device='tpu'.*cpu, cuda"):
        registry.backend(None, "tpu")
    with pytest.raises(
        UnsupportedArithmetic, match="'ieee/1' on 'cuda'; there are: ieee/1 on cpu, .*tensorcore/1 on cuda"
    ):
        registry.backend("ieee/1", "cuda")


@pytest.mark.parametrize("package", ["torch", "triton"])
@pytest.mark.parametrize(("arithmetic", "name"), [(None, "tensorcore/1"), ("vendor", "vendor")])
def test_a_card_needs_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, arithmetic: str | None, name: str
) -> None:
    for module in list(sys.modules):
        if module.startswith(("queueproof.kernels.triton", "queueproof.kernels.vendor.cuda")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedDevice, match=f"{name} on device 'cuda' needs.*pip install \"queueproof.gpu.\""):
        LLM("no/model", arithmetic=arithmetic, device="cuda")


def test_other_missing_modules_are_faults_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "queueproof.kernels.vendor.backend", raising=False)
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with pytest.raises(ModuleNotFoundError, match="threadpoolctl"):
        registry.backend("vendor")
