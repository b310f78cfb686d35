"""Arithmetic shared by eager mode, the compiler and the back end.

Pure functions over small tuples of integers: no torch, no sympy, no compiled extension.
"""

from .align import Aligned, NeedsCopy, Walk, align
from .dma import Transfer, copy_plan
from .pieces import Nest, padding, pieces
from .splits import Chunk, Span, chunks, core_slices, divide
from .storage import Access, Place, Storage
from .terms import Expression, Refined, Term, UnevenSplitError, refine

__all__ = [
    "Access",
    "Aligned",
    "Chunk",
    "Expression",
    "NeedsCopy",
    "Nest",
    "Place",
    "Refined",
    "Span",
    "Storage",
    "Term",
    "Transfer",
    "UnevenSplitError",
    "Walk",
    "align",
    "chunks",
    "copy_plan",
    "core_slices",
    "divide",
    "padding",
    "pieces",
    "refine",
]
