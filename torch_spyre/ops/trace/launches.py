"""From a finished trace to launches: the graph's kernels, and direct steps between them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torch_spyre import ir
from torch_spyre._inductor.codegen.opspec import KernelDraft, kernels_of
from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre._inductor.graph import Buffer
from torch_spyre._inductor.passes import run_passes
from torch_spyre.backend.compile import compile_afresh
from torch_spyre.backend.program import STICK_BYTES
from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.plan import Bind, Launch, OutputSpec, Plan
from torch_spyre.ops.trace.tracer import Direct, Tracer
from torch_spyre.ops.views import View, layout


def finish(
    tracer: Tracer, places: Mapping[int, Bind], returned: tuple[OutputSpec | int | None, ...]
) -> Plan:
    """The plan of a trace; `places` says where buffers (by id) lie that callers see."""
    return _Finisher(tracer, places).plan(returned)


class _Finisher:
    def __init__(self, tracer: Tracer, places: Mapping[int, Bind]) -> None:
        self.tracer = tracer
        self.graph = tracer.graph
        self.places = places
        self.temp_bytes = 0
        self.binds: dict[Buffer, Bind] = {}

    def plan(self, returned: tuple[OutputSpec | int | None, ...]) -> Plan:
        self._settle_direct()
        run_passes(self.graph)
        parts: dict[int, list[Launch]] = {}
        for draft in kernels_of(self.graph):
            parts.setdefault(int(draft.ops[0].node), []).append(self._kernel(draft))
        for segment, steps in self.tracer.direct.items():
            parts.setdefault(segment, []).extend(self._steps(steps))
        launches = [launch for segment in sorted(parts) for launch in parts[segment]]
        return Plan(
            tuple(launches),
            returned,
            self.temp_bytes,
            rng_offset=self.tracer.random_numbers,
        )

    def _settle_direct(self) -> None:
        """What direct steps touch lies in memory, in a layout that is known before the passes."""
        written = {op.output.buffer for op in self.graph.ops}
        for touched in self.tracer.touched.values():
            for buffer, _ in touched:
                if buffer.is_input:
                    continue
                if buffer.storage is None:
                    device_size, stride_map = layout(
                        buffer.size, buffer.stride, buffer.dtype, tuple(range(len(buffer.size)))
                    )
                    buffer.storage = ir.Storage(device_size, stride_map, max(buffer.numel, 1))
                buffer.is_laid_out = True
                buffer.is_output = True
                if buffer not in written:
                    buffer.is_input = True

    # ---- Memory --------------------------------------------------------------------------------

    def _bind(self, buffer: Buffer) -> Bind:
        known = self.binds.get(buffer)
        if known is None:
            if id(buffer) in self.places:
                known = self.places[id(buffer)]
            elif buffer.name.startswith("arg"):
                known = Bind("arg", int(buffer.name.removeprefix("arg")))
            else:
                known = self._reserve(buffer.nbytes)
            self.binds[buffer] = known
        return known

    def _reserve(self, nbytes: int) -> Bind:
        bind = Bind("temp", self.temp_bytes)
        self.temp_bytes += -(-nbytes // STICK_BYTES) * STICK_BYTES
        return bind

    # ---- Launches ------------------------------------------------------------------------------

    def _kernel(self, draft: KernelDraft) -> Launch:
        bundle = bundle_of(draft.spec)
        code = compile_afresh(bundle)
        symbols = [self._bind(buffer) for buffer in draft.arguments]
        if code.manifest.pool_bytes:
            symbols.append(self._reserve(code.manifest.pool_bytes))
        return Launch(code.program, tuple(symbols))

    def _steps(self, steps: Direct) -> list[Launch]:
        emitter = Emitter(temp_bytes=self.temp_bytes)

        def view(tensor: torch.Tensor) -> View:
            buffer = self.tracer.buffer(tensor)
            assert buffer.storage is not None
            return View(
                self._bind(buffer),
                buffer.storage,
                tuple(tensor.shape),
                tuple(tensor.stride()),
                int(tensor.storage_offset()),
                tensor.dtype,
            )

        # Their memory is reserved first: the emitter counts on from there.
        for touched in self.tracer.touched.values():
            for buffer, _ in touched:
                self._bind(buffer)
        emitter.temp_bytes = self.temp_bytes
        steps(emitter, view)
        self.temp_bytes = emitter.temp_bytes
        program, symbols = emitter.finish()
        if not symbols:
            return []
        return [Launch(program, symbols)]
