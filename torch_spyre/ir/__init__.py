"""Arithmetic shared by eager mode, the compiler and the back end.

Pure functions over small tuples of integers: no torch, no sympy, no compiled extension.
"""

from .align import Aligned, align
from .align_gather import GatherAligned, align_gather
from .align_matmul import MatmulAligned, align_matmul
from .arguments import (
    core_shares,
    device_coordinates,
    element_coordinates,
    gather_coordinates,
    space_extents,
)
from .coordinates import Affine, Box, coordinates, core_boxes
from .dma import Transfer, copy_plan
from .pieces import Nest, in_sticks, padding, pieces
from .splits import CORES, Chunk, Span, chunks, core_slices, divide
from .storage import STICK_BYTES, Access, Place, Storage
from .terms import Expression, Refined, Term, UnevenSplitError, refine
from .walks import NeedsCopy, Walk

__all__ = [
    "CORES",
    "STICK_BYTES",
    "Access",
    "Affine",
    "Aligned",
    "Box",
    "Chunk",
    "Expression",
    "GatherAligned",
    "MatmulAligned",
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
    "align_gather",
    "align_matmul",
    "chunks",
    "coordinates",
    "copy_plan",
    "core_boxes",
    "core_shares",
    "core_slices",
    "device_coordinates",
    "divide",
    "element_coordinates",
    "gather_coordinates",
    "in_sticks",
    "padding",
    "pieces",
    "refine",
    "space_extents",
]
