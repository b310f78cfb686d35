"""The loop-level passes, in order. To find a decision of the compiler, read down this list."""

from __future__ import annotations

from .. import config
from ..graph import SpyreGraph
from ..observe import stage
from ..pass_log import PassLog
from .combine import combine_exponentials
from .common import merge_equal_operations
from .constants import promote_constants
from .copies import forward_widening_copies
from .dead_code import eliminate_dead_code
from .division import work_distribution
from .guarantees import check
from .kernels import group_into_kernels
from .layouts import propagate_spyre_tensor_layouts
from .order import order_for_locality
from .padding import pad_matmul_operands
from .pool import pool_planning
from .restickify import insert_restickifies
from .scratchpad import scratchpad_planning
from .spans import span_reduction
from .tiling import plan_together
from .wishes import tile_as_wished


def plan_cores_and_memory(graph: SpyreGraph) -> None:
    """Work division, scratchpads and coarse tiles: together, or (SPYRE_PLAN=basic) in a row."""
    if config.plan not in ("full", "basic"):
        raise ValueError(f"SPYRE_PLAN={config.plan!r} is no way to plan; legal values: full, basic")
    if config.plan == "basic" or not config.lx_planning:
        work_distribution(graph)
        scratchpad_planning(graph)
    else:
        plan_together(graph)


PASSES = (
    promote_constants,
    forward_widening_copies,
    combine_exponentials,
    merge_equal_operations,
    eliminate_dead_code,
    propagate_spyre_tensor_layouts,
    insert_restickifies,
    pad_matmul_operands,
    order_for_locality,
    group_into_kernels,
    tile_as_wished,
    span_reduction,
    plan_cores_and_memory,
    pool_planning,
)


def run_passes(graph: SpyreGraph) -> None:
    """Plan a graph whose bodies are split into operations of the card."""
    names = tuple(pass_.__name__ for pass_ in PASSES)
    log = PassLog(graph, names)
    for number, (name, pass_) in enumerate(zip(names, PASSES, strict=True), 1):
        with stage(name, graph):
            pass_(graph)
        log.after(number, name, graph)
        if config.check_guarantees:
            check(graph, name)
