"""The audit of any OpenAI-compatible endpoint: what changes its answers, why, what determinism costs there, and a contract.

It is a client and knows no engine. The path of a run, in order: `client` asks, `lab` keeps what was asked and watches the
load, `probes` vary one thing each, `book` counts what changed and what proves that the thing varied, `attribution` names
causes, `report` shows them, `gate` holds them to a contract.
"""
