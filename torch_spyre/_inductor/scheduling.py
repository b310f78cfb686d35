"""`SuperDSCScheduling`: turns scheduled operations into launches of planned kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.scheduler import BaseSchedulerNode, BaseScheduling, SchedulerNode
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from .wrapper import SpyrePythonWrapperCodegen


class SuperDSCScheduling(BaseScheduling):
    """Inductor's pairwise fusion is off: which operations form a kernel was planned before.

    A kernel is written when its last operation comes by; the scheduler keeps program order, so
    everything it reads exists by then.
    """

    def get_backend_features(self, device: Any) -> OrderedSet[BackendFeature]:
        return OrderedSet([BackendFeature.REDUCE_TO_SINGLE_ELEMENT])

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def can_fuse_horizontal(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def group_fn(self, sizes: Sequence[Sequence[sympy.Expr]]) -> tuple[Any, ...]:
        return tuple(V.graph.sizevars.simplify(sympy_product(size)) for size in sizes)

    def codegen_node(self, node: Any) -> None:
        wrapper = V.graph.wrapper_code
        assert isinstance(wrapper, SpyrePythonWrapperCodegen)
        for part in node.get_nodes():
            assert isinstance(part, SchedulerNode)
            part.mark_run()
            for kernel in wrapper.kernels.finished_by(part.get_name()):
                wrapper.write_kernel(kernel)
            if not wrapper.kernels.is_open_after(part.get_name()):
                self.free_buffers_in_scheduler()

    def codegen_template(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("there are no templates for spyre")

    def generate_kernel_code_from_nodes(self, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError("kernels are planned as a whole, not node by node")

    def codegen_sync(self) -> None:
        V.graph.wrapper_code.writeline("torch.spyre.synchronize()")

    def ready_to_flush(self) -> bool:
        return False

    def flush(self) -> None:
        """Kernels end before operations that are not ours, so nothing is pending."""
