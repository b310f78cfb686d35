"""Conversions that cost nothing: those that every step makes when it reads."""

from __future__ import annotations

import torch

from torch_spyre.ops.formats import Kind, card_format, kind_of


def is_widening(source: torch.dtype, to: torch.dtype) -> bool:
    """Can a step that wants `to` read `source` as it is, with the same result?"""
    kinds = kind_of(source), kind_of(to)
    if card_format(source) == card_format(to):
        return kinds[1] is not Kind.BOOL
    if kinds == (Kind.FLOAT, Kind.FLOAT) or kinds == (
        Kind.BOOL,
        Kind.FLOAT,
    ):
        return card_format(source).nbytes < card_format(to).nbytes
    if kinds == (Kind.INT, Kind.INT):
        return to in (torch.int32, torch.int64) or (source, to) == (torch.int8, torch.int16)
    return False
