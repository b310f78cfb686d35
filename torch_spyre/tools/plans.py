"""What eager operations became: the programs that a call was planned as, step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar
from unittest import mock

from torch_spyre import _C
from torch_spyre.backend.cost import step_names
from torch_spyre.ops import eager
from torch_spyre.ops.plan import Argument, Plan, UnsupportedError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Whoever records replaces the planner's entry; two at once would find each other's plans.
_lock = threading.Lock()


@dataclass(frozen=True)
class Planned:
    """An operation, the steps of each program it launches, and why not, if it is none."""

    operation: str  # "aten::softmax"
    launches: tuple[tuple[str, ...], ...]
    reason: str = ""  # why the CPU does it

    def __str__(self) -> str:
        if self.reason:
            return f"{self.operation}: on the CPU: {self.reason}"
        programs = " | ".join(" ".join(steps) for steps in self.launches)
        return f"{self.operation}: {programs or 'nothing to launch'}"


def plans_of(
    work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> list[Planned]:
    """Call a function, and return the plans of the operations in it, in order.

    The cache of plans is emptied before, so that everything is planned anew; an operation that is
    called twice in the same way is there once.
    """
    with _lock, _recording() as found:
        _C.clear_plan_cache()
        work(*args, **kwargs)
    return found


@contextmanager
def _recording() -> Iterator[list[Planned]]:
    found: list[Planned] = []
    original = eager.plan_for_cpp

    def plan_for_cpp(name: str, args: tuple[Argument, ...]) -> Plan:
        try:
            plan = original(name, args)
        except UnsupportedError as error:
            found.append(Planned(name, (), str(error)))
            raise
        if not plan.resize:  # it is planned again when the tensor has its size
            programs = tuple(tuple(step_names(launch.program)) for launch in plan.launches)
            found.append(Planned(name, programs))
        return plan

    with mock.patch.object(eager, "plan_for_cpp", plan_for_cpp):
        yield found
