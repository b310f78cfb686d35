"""Passes over the FX graph after decomposition."""

from __future__ import annotations

import torch


def run(gm: torch.fx.GraphModule) -> None:
    """All passes, in order."""
    del gm
