"""`ieee/1` in plain NumPy: the truth that kernels are compared with, bit for bit.

It restates docs/arithmetic.md section by section (numbers, sums, functions, layers, attention, sampling), shares
nothing with the kernels, and loops over every axis that is summed. Only independent values are handled together.
"""
