"""What the compiler says when it can't."""

from __future__ import annotations

import torch
from torch._dynamo.exc import ShortenTraceback

from torch_spyre.ir.spec import Origin


class Unsupported(ShortenTraceback):
    """The graph holds something that has no form on the card. A RuntimeError.

    The message names the operation, where it stands in the model, the tensors, the reason, and a
    way out. `is_loop`: only the operation as a loop has no form, so a call of the eager one may do.
    """

    def __init__(
        self,
        what: str,
        why: str,
        *,
        origin: Origin | None = None,
        tensors: tuple[str, ...] = (),
        way_out: str = "",
        is_loop: bool = False,
    ) -> None:
        lines = [what]
        if origin is not None and origin.file:
            lines.append(f"  in  {origin.file}:{origin.line}  {origin.code}".rstrip())
        lines += [f"  {tensor}" for tensor in tensors]
        lines.append(f"  why {why}")
        if way_out:
            lines.append(f"  try {way_out}")
        # As one of Dynamo's own it reaches the caller as it is, not wrapped.
        super().__init__("\n".join(lines), first_useful_frame=None)
        self.what, self.why, self.origin, self.way_out = what, why, origin, way_out
        self.is_loop = is_loop
        self.node: torch.fx.Node | None = None  # to call instead; the planner knows


class Refused(ShortenTraceback):
    """PyTorch refuses the call, in these words of its own. A RuntimeError."""

    def __init__(self, message: str) -> None:
        super().__init__(message, first_useful_frame=None)


class HintError(Unsupported, ValueError):
    """A hint that can't be followed as it was given."""
