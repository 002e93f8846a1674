"""Serve metrics, probes, status and control on one HTTP port."""
