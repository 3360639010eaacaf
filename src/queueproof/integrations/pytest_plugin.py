"""Fixtures for tests of an endpoint; pytest loads them where Queueproof is installed."""
