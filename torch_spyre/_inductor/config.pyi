from contextlib import AbstractContextManager
from typing import Any

sencores: int
lx_planning: bool
dxp_lx_frac_avail: float
layout_solver: str
plan: str
boundary_clones: bool
repeat_threshold: int
check_guarantees: bool
dump_cost: bool
input_layouts: tuple[object, ...]
hints: str

def patch(*args: Any, **kwargs: Any) -> AbstractContextManager[None]: ...
