"""Continuous batching over `kernels/ops.py`. `llm.LLM` and `async_engine.AsyncEngine` are the ways in."""
