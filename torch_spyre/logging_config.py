"""The logs of the compiler: which there are, how `TORCH_LOGS` names them, and where they go.

    TORCH_LOGS="torch_spyre.inductor"            # what happens, a line at a time
    TORCH_LOGS="+torch_spyre.inductor.passes"    # what every pass changes
    TORCH_LOGS="spyre_plan,spyre_cost"           # artifacts, each by its name

PyTorch reads `TORCH_LOGS` at the end of `import torch`, just after it loads device backends. So the
names are registered by then, and no compiler module is imported for it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from torch._logging import _internal

from torch_spyre import _environment

ROOT = "torch_spyre.inductor"

# The passes of the compiler, as `_inductor.passes.PASSES` has them: each has a log of its own.
PASSES = (
    "promote_constants",
    "forward_widening_copies",
    "combine_exponentials",
    "merge_equal_operations",
    "eliminate_dead_code",
    "propagate_spyre_tensor_layouts",
    "insert_restickifies",
    "pad_matmul_operands",
    "order_for_locality",
    "group_into_kernels",
    "tile_as_wished",
    "span_reduction",
    "plan_cores_and_memory",
    "pool_planning",
)

COMPONENTS = (
    "lowering",
    "passes",
    *(f"passes.{name}" for name in PASSES),
    "codegen",
    "backend",
)

# Name: what it shows, and whether it stays out of `+torch_spyre.inductor`.
ARTIFACTS = {
    "spyre_plan": ("layouts, places and core slices of every graph for Spyre", False),
    "spyre_opspec": ("the OpSpecs of every Spyre kernel", True),
    "spyre_cost": ("modelled time, traffic and bound of every Spyre kernel", True),
}


def register() -> None:
    """Make the names known to `TORCH_LOGS` and `torch._logging.set_logs`. Called at autoload."""
    for name in names():
        _internal.register_log(name, name)
    for name, (what, is_quiet) in ARTIFACTS.items():
        _internal.register_artifact(name, what, visible=True, off_by_default=is_quiet)


def names() -> tuple[str, ...]:
    """All names of logs, the one that holds the others first.

    >>> names()[:3]
    ('torch_spyre.inductor', 'torch_spyre.inductor.lowering', 'torch_spyre.inductor.passes')
    """
    return (ROOT, *(f"{ROOT}.{component}" for component in COMPONENTS))


def get_logger(component: str = "") -> logging.Logger:
    """The log of a component (`"passes"`, `"passes.span_reduction"`), or that of the compiler."""
    if component and component not in COMPONENTS:
        raise ValueError(
            f"the compiler has no component {component!r}; there are {', '.join(COMPONENTS)}"
        )
    return logging.getLogger(f"{ROOT}.{component}" if component else ROOT)


def get_artifact_logger(artifact: str) -> logging.Logger:
    """The log of an artifact; ask `is_wanted` before making a long text for it."""
    return _internal.getArtifactLogger(ROOT, artifact)


def is_wanted(log: logging.Logger, level: int = logging.DEBUG) -> bool:
    """Would somebody see a message? An artifact that was not asked for by name has no readers."""
    return log.isEnabledFor(level) and (log.propagate or bool(log.handlers))


def set_level(level: int | str, component: str = "") -> None:
    """Show messages of this level and above, of a component or of the whole compiler.

    >>> set_level("DEBUG", "passes.insert_restickifies")
    """
    get_logger(component).setLevel(level)


def log_to(path: str | Path | None) -> None:
    """Write all logs of the compiler to a file; None: to stderr.

    The file is appended to. Until the next `torch._logging.set_logs`, which writes to stderr again.
    """
    handler = logging.FileHandler(path) if path is not None else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    _internal._track_handler(handler)
    for name in names():
        log = logging.getLogger(name)
        _internal._clear_handlers(log)
        log.propagate = name != ROOT
    get_logger().addHandler(handler)


def follow_environment() -> None:
    """SPYRE_INDUCTOR_LOG, SPYRE_INDUCTOR_LOG_LEVEL and SPYRE_LOG_FILE. Called at first compile.

    Levels that `TORCH_LOGS` gives stay as they are.
    """
    is_on = _environment.flag("SPYRE_INDUCTOR_LOG", False)
    level = _environment.choice("SPYRE_INDUCTOR_LOG_LEVEL", "info").upper()
    path = _environment.text("SPYRE_LOG_FILE")
    if is_on and get_logger().level == logging.NOTSET:
        set_level(level)
    if is_on or path:
        log_to(path or None)
