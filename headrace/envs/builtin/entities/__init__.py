"""Environments of many alike parts: see docs/entities.md."""
