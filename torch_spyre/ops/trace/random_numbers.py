"""Random numbers inside of a trace: each such step takes a counter of the generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_spyre.ops import generated
from torch_spyre.ops.compute import Computation
from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.plan import ScalarMeta
from torch_spyre.ops.trace.decompositions import decomposition
from torch_spyre.ops.trace.leaves import leaf
from torch_spyre.ops.trace.tracer import Tracer
from torch_spyre.ops.views import View

Tensor = torch.Tensor
ViewOf = Callable[[Tensor], View]


@decomposition("aten::randperm", "aten::randperm.generator")
def randperm(n: int, **options: Any) -> Tensor:
    options.pop("generator", None)
    options.pop("pin_memory", None)
    dtype = options.pop("dtype", None) or torch.int64
    keys = torch.empty(n, dtype=torch.int32, device="meta").random_()
    return torch.ops.aten.sort.stable(keys, stable=True)[1].to(dtype)


# ---- Random numbers -----------------------------------------------------------------------------


@leaf(
    "aten::uniform_",
    "aten::normal_",
    "aten::random_",
    "aten::random_.to",
    "aten::random_.from",
    "aten::bernoulli_.float",
)
def random(tracer: Tracer, func: Any, x: Tensor, *args: Any, **options: Any) -> Tensor:
    entry = func.name().removeprefix("aten::").partition(".")[0]
    names = [argument.name for argument in func._schema.arguments]
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    given = {**defaults, **dict(zip(names[1:], args, strict=False)), **options}
    arguments = {
        name: ScalarMeta(torch.float64, -1, True, value)
        for name, value in given.items()
        if isinstance(value, int | float)
    }
    counter = tracer.random_numbers
    tracer.random_numbers += 1
    if x.numel() == 0:
        return x

    def steps(emitter: Emitter, view: ViewOf) -> None:
        generated.lower(entry, _Numbered(emitter, arguments, view(x)), counter)

    tracer.write_directly([], [x], steps)
    return x


class _Numbered(Computation):
    """Its numbers are constants."""

    def number(self, argument: Any, dtype: torch.dtype, *_: Any, **__: Any) -> Any:
        value = argument.value if isinstance(argument, ScalarMeta) else argument
        return super().number(value, dtype)
