"""The back end: a bundle becomes a card program.

Each SuperDSC becomes a step, equal ones once (`lower_step.py`). Then, over the whole program:
where cores must wait for each other, which steps form chains, which iteration dimensions are one
(`schedule.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from torch_spyre.backend.lower_step import Binding, Lowered, lower_step
from torch_spyre.backend.program import (
    LOOP_DEPTH,
    Operand,
    Program,
    Space,
    Step,
    Symbol,
    SymbolKind,
)
from torch_spyre.backend.schedule import Item, Nest, schedule
from torch_spyre.ir.bundle import MLIR_FILE, Bundle, For, Node, sdsc_file
from torch_spyre.ir.superdsc import FORMAT_BY_NUMBER, BundleError, DataFormat, SuperDSC

__all__ = ["BundleError", "lower"]


def lower(bundle: Bundle) -> Program:
    """The program of a bundle; raises BundleError that names file, place and reason.

    Symbols: an address per kernel argument, then the pool if there is one, then the extents.
    """
    return _Lowering(bundle).run()


class _Lowering:
    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.constants: dict[int, int] = {}
        self.symbols = _symbols(bundle)

    def run(self) -> Program:
        body = schedule(self.body(self.bundle.body, ()), self.symbols)
        return Program(self.symbols, body, tuple(self.constants))

    def body(self, nodes: Sequence[Node], counts: tuple[int, ...]) -> list[Item | Nest]:
        found: list[Item | Nest] = []
        for node in nodes:
            if isinstance(node, For):
                if len(counts) == LOOP_DEPTH or node.count < 1:
                    raise BundleError(
                        MLIR_FILE,
                        "",
                        f"a loop of {node.count} iterations within {len(counts)} loops; a card "
                        f"nests {LOOP_DEPTH}, of at least one iteration",
                    )
                found.append(Nest(node.count, self.body(node.body, (*counts, node.count))))
                continue
            if node.sdsc >= len(self.bundle.sdscs):
                raise BundleError(MLIR_FILE, "", f"there is no {sdsc_file(node.sdsc)}")
            for address in node.addresses:
                if address.base == "arg" and address.index >= len(self.bundle.args):
                    raise BundleError(MLIR_FILE, "", f"there is no argument {address.index}")
                if address.base == "pool" and not self.bundle.pool_bytes:
                    raise BundleError(MLIR_FILE, "", "an address in the pool, but there is none")
            count = len(self.bundle.args)
            binding = Binding(
                node.addresses,
                len(counts),
                count,
                self.bundle.extents,
                count + bool(self.bundle.pool_bytes),
            )
            sdsc = self.bundle.sdscs[node.sdsc]
            lowered = _memoised(sdsc, sdsc_file(node.sdsc), binding)
            step = self.with_constants(lowered)
            found.append(Item(step, lowered.lanes, counts, sdsc_file(node.sdsc)))
        return found

    def with_constants(self, lowered: Lowered) -> Step:
        """Number the constants of a step in the program's table."""
        if not lowered.constants:
            return lowered.step
        numbers = [
            self.constants.setdefault(bits, len(self.constants)) for bits in lowered.constants
        ]

        def numbered(operand: Operand) -> Operand:
            if operand.space is not Space.CONSTANT:
                return operand
            return replace(operand, symbol=numbers[operand.symbol])

        return replace(lowered.step, inputs=tuple(map(numbered, lowered.step.inputs)))


def _symbols(bundle: Bundle) -> tuple[Symbol, ...]:
    symbols = []
    for i, arg in enumerate(bundle.args):
        if arg.device_dtype not in FORMAT_BY_NUMBER:
            raise BundleError(MLIR_FILE, "", f"argument {i}: no operation has its format")
        symbols.append(Symbol(SymbolKind.ADDRESS, arg.device_dtype, arg.nbytes, arg.is_written))
    if bundle.pool_bytes:
        fmt = DataFormat.SEN169_FP16.number
        symbols.append(Symbol(SymbolKind.ADDRESS, fmt, bundle.pool_bytes, True))
    number = DataFormat.IEEE_INT32.number
    symbols += [Symbol(SymbolKind.EXTENT, number, extent) for extent in bundle.extents]
    return tuple(symbols)


_MEMO: OrderedDict[tuple[bytes, Binding], Lowered] = OrderedDict()
_MEMO_SIZE = 2048


def _memoised(sdsc: SuperDSC, file: str, binding: Binding) -> Lowered:
    """Equal SuperDSCs with equal addresses are lowered once."""
    key = (msgspec.msgpack.encode(sdsc), binding)
    lowered = _MEMO.get(key)
    if lowered is None:
        lowered = lower_step(sdsc, file, binding)
        if len(_MEMO) == _MEMO_SIZE:
            _MEMO.popitem(last=False)
        _MEMO[key] = lowered
    return lowered
