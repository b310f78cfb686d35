"""Operations that are particular about dtypes: what must be alike, what must be a float.

PyTorch's kernels for the CPU and for CUDA insist on it. What it has for all devices does not: forms
made of other operations widen what is narrower, and meta kernels take the dtype of one operand. So
where a call looks wrong here, the CPU is asked, which says it in PyTorch's own words.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Names are without what marks forms in place and overloads. Operands are places in the schema.
_OF_ONE_DTYPE: dict[str, tuple[int, ...]] = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "mv": (0, 1),
    "addmm": (0, 1, 2),
    "baddbmm": (0, 1, 2),
    "addbmm": (0, 1, 2),
    "addmv": (0, 1, 2),
    "binary_cross_entropy": (0, 1, 2),
    "nll_loss_forward": (0, 2),
    "nll_loss2d_forward": (0, 2),
    "index_add": (0, 3),
    "index_copy": (0, 3),
    "index_put": (0, 2),
    "_index_put_impl": (0, 2),
    "put": (0, 2),
}
# The first operand, that is. Of what the CPU alone refuses (`histc` of integers) models make use.
_OF_FLOATS = {
    *("_softmax", "_log_softmax", "_safe_softmax"),
    *("var", "var_mean", "std", "std_mean"),
    *("nll_loss_forward", "nll_loss2d_forward"),
}
_OF_NUMBERS = {"mm", "bmm", "addmm", "baddbmm", "argmax", "argmin"}

NAMES = frozenset([*_OF_ONE_DTYPE, *_OF_FLOATS, *_OF_NUMBERS])


def looks_wrong(name: str, dtypes: Sequence[torch.dtype | None]) -> bool:
    """Would PyTorch refuse arguments of these dtypes? None is no tensor.

    >>> looks_wrong("aten::addmm.out", [torch.float32, torch.float32, torch.float16])
    True
    """
    plain = name.removeprefix("aten::").partition(".")[0].removesuffix("_")
    if plain not in NAMES:
        return False
    places = [place for place in _OF_ONE_DTYPE.get(plain, ()) if place < len(dtypes)]
    if len({dtypes[place] for place in places} - {None}) > 1:
        return True
    first = dtypes[0]
    if first is None:
        return False
    is_wrong_kind = plain in _OF_FLOATS and not first.is_floating_point
    return is_wrong_kind or (plain in _OF_NUMBERS and first is torch.bool)
