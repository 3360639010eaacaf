"""The undeclared baseline: NumPy and its BLAS, as everyone else computes a model. It promises nothing about bits."""
