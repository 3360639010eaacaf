"""`tensorcore/1` on CUDA cards, in Triton (docs/arithmetic-tensorcore.md). Only this folder, kernels/cuda and
kernels/vendor/cuda need torch and triton: the extra `gpu`."""
