"""Products of quantised matrices: fp8 is widened to the 16-bit float, which holds it exactly."""

from __future__ import annotations

from typing import Any

import torch

from torch_spyre.ops.trace.leaves import leaf, matmul_into
from torch_spyre.ops.trace.tracer import Tracer

Tensor = torch.Tensor


@leaf("aten::_scaled_mm")
def scaled_mm(
    tracer: Tracer,
    func: Any,
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """(a * scale_a) @ (b * scale_b): the scales come after the sum, which is one in fp32."""
    del func, use_fast_accum
    wide = tracer.new((a.shape[0], b.shape[1]), torch.float32)
    product = matmul_into(
        tracer, tracer.as_dtype(a, torch.float16), tracer.as_dtype(b, torch.float16), wide
    )
    with tracer:
        result = product * scale_a * scale_b
        if bias is not None:
            result = result + bias
        if scale_result is not None:
            result = result * scale_result
        dtype = out_dtype or a.dtype
        if dtype.itemsize == 1:  # 8-bit results saturate, as PyTorch's do
            most = torch.finfo(dtype).max
            result = result.clamp(-most, most)
        return result.to(dtype)


@leaf("aten::_int_mm")
def int_mm(tracer: Tracer, func: Any, a: Tensor, b: Tensor) -> Tensor:
    """int8 products add up in int32."""
    result: Tensor = func(a, b)
    return matmul_into(tracer, a, b, result)
