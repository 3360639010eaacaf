"""`tensorcore/1` in plain NumPy: docs/arithmetic-tensorcore.md, section by section, on the pieces of `ieee/1` that it keeps.

The matrix unit is the published model of it (Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021; Xie et al.,
"MMA-Sim", 2025); whether a card is like its model is for the canary to find out.
"""
