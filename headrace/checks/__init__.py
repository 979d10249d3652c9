"""Checks of environments and devices; `headrace check` prints their findings."""
