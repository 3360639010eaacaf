"""The probes: each varies one thing and compares answers. See `base.Probe`."""
