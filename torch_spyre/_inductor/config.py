"""Settings of the compiler, read from the environment once and patchable like Inductor's own:
`with torch_spyre._inductor.config.patch(sencores=4): ...`. All of them are part of the cache keys.
"""

import sys

from torch.utils._config_module import install_config_module

from torch_spyre._environment import choice, flag, text

# Cores the compiler divides work among, 1 to 32.
sencores: int = int(text("SENCORES", "32"))

# Keep intermediates in the scratchpads.
lx_planning: bool = flag("LX_PLANNING", True)

# The fraction of each scratchpad that the back end keeps for itself.
dxp_lx_frac_avail: float = float(text("DXP_LX_FRAC_AVAIL", "0.2"))

# Which solver gives scratchpad addresses: greedy, firstfit, bestfit or exact.
layout_solver: str = choice("LAYOUT_SOLVER", "bestfit")

# "full": work division, scratchpads and coarse tiles are chosen together. "basic": one after the
# other, and no tiles.
plan: str = choice("SPYRE_PLAN", "full")

# Clone graph inputs that are read more than once into the scratchpads, and produce outputs that
# are read again there.
boundary_clones: bool = True

# Fewest operations of a repeated stretch (a layer) that becomes a kernel of its own.
repeat_threshold: int = 8

# Assert between passes what each of them promises. For people who work on the compiler.
check_guarantees: bool = False

# Print the cost report after each compile.
dump_cost: bool = flag("SPYRE_DUMP_COST", False)

# Set by the compiler: device layouts of the graph's inputs, so that cache keys hold them.
input_layouts: tuple[object, ...] = ()

# Set by the compiler: a digest of the hints in the graph, which Inductor's cache keys do not see.
hints: str = ""

install_config_module(sys.modules[__name__])
