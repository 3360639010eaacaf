"""Queueproof inside other tools: each module is independent of the others."""
