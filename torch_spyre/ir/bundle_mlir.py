"""bundle.mlir: the loop program of a bundle as text, and back.

Printing is plain string work; reading goes through xDSL with `sdscbundle` as a dialect of its own
(`bundle_dialect.py`), which is imported only then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .spec import KernelArg
from .superdsc import FORMAT_BY_NUMBER, BundleError, DataFormat

if TYPE_CHECKING:
    from .bundle import Address, Bundle, Node

_ARG = "!sdscbundle.input_arg<index>"
_EXTENT = "!sdscbundle.input_arg<i32>"


class LoopProgram(NamedTuple):
    """What bundle.mlir says: everything of a bundle but the SuperDSCs."""

    sdscs: int  # how many files it refers to
    body: tuple[Node, ...]
    args: tuple[KernelArg, ...]
    pool_bytes: int
    extents: tuple[int, ...]


# ---- Printing ------------------------------------------------------------------------------------


def print_bundle(bundle: Bundle) -> str:
    """The text of bundle.mlir."""
    printer = _Printer(bundle)
    body = list(printer.body(bundle.body, (), "    "))
    maps = [f"#map_{i} = affine_map<{text}>" for text, i in printer.maps.items()]
    head = f"  func.func @sdsc_bundle({', '.join(_signature(bundle))}) {{"
    lines = [*maps, "module {", head, *printer.prologue(), *body, "    return", "  }", "}"]
    return "\n".join(lines) + "\n"


def _signature(bundle: Bundle) -> Iterator[str]:
    for i, arg in enumerate(bundle.args):
        fmt = FORMAT_BY_NUMBER[arg.device_dtype].value
        written = ", is_written" if arg.is_written else ""
        yield f'%arg{i}: {_ARG} {{format = "{fmt}", nbytes = {arg.nbytes} : i64{written}}}'
    if bundle.pool_bytes:
        yield f"%pool: {_ARG} {{is_pool, nbytes = {bundle.pool_bytes} : i64}}"
    for i, extent in enumerate(bundle.extents):
        yield f"%extent_{i}: {_EXTENT} {{max = {extent} : i64}}"


@dataclass
class _Printer:
    bundle: Bundle
    maps: dict[str, int] = field(default_factory=dict)
    bounds: dict[int, str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    addresses: int = 0
    loops: int = 0

    def prologue(self) -> Iterator[str]:
        if self.bounds:
            yield "    %c0 = arith.constant 0 : index"
            yield "    %c1 = arith.constant 1 : index"
        for count, name in self.bounds.items():
            yield f"    {name} = arith.constant {count} : index"
        for name, operation in sorted(self.symbols.items()):
            yield f"    {name} = {operation}"

    def body(self, body: tuple[Node, ...], loops: tuple[str, ...], indent: str) -> Iterator[str]:
        from .bundle import For

        for node in body:
            if isinstance(node, For):
                index = f"%i_{self.loops}"
                self.loops += 1
                bound = self.bounds.setdefault(node.count, f"%loop_bound_{len(self.bounds)}")
                yield f"{indent}scf.for {index} = %c0 to {bound} step %c1 {{"
                yield from self.body(node.body, (*loops, index), indent + "  ")
                yield indent + "}"
                continue
            operands = []
            for address in node.addresses:
                symbol = self.symbol(address)
                if any(address.loop_bytes):
                    name = f"%addr_{self.addresses}"
                    self.addresses += 1
                    number = self.map(address.loop_bytes)
                    indices = ", ".join(loops)
                    yield f"{indent}{name} = affine.apply #map_{number}({indices})[{symbol}]"
                    symbol = name
                operands.append(symbol)
            file = f'{{sdsc_filename="sdsc_{node.sdsc}.json"}}'
            yield f"{indent}sdscbundle.sdsc_execute ({', '.join(operands)}) {file}"

    def symbol(self, address: Address) -> str:
        if address.base == "lx":
            name, operation = "%lx", "sdscbundle.lx"
        elif address.base == "pool":
            name, operation = "%sym_pool", f"sdscbundle.address %pool : {_ARG}"
        else:
            name = f"%sym_{address.index}"
            operation = f"sdscbundle.address %arg{address.index} : {_ARG}"
        self.symbols[name] = operation
        return name

    def map(self, loop_bytes: tuple[int, ...]) -> int:
        dims = ", ".join(f"d{i}" for i in range(len(loop_bytes)))
        terms = [f"{step}*d{i}" for i, step in enumerate(loop_bytes) if step]
        text = f"({dims})[s0] -> ({' + '.join(['s0', *terms])})"
        return self.maps.setdefault(text, len(self.maps))


# ---- Reading -------------------------------------------------------------------------------------


def parse_bundle(text: str, file: str = "bundle.mlir") -> LoopProgram:
    """Read the text of bundle.mlir; raises BundleError."""
    from .bundle_dialect import BundleSyntaxError, function, read_body, signature

    try:
        bundle = function(text)
        args, pool_bytes, extents = _arguments(signature(bundle))
        body = read_body(bundle)
    except BundleSyntaxError as error:
        raise BundleError(file, error.place, error.what) from None
    return LoopProgram(_count_files(body, file), body, args, pool_bytes, extents)


def _arguments(
    described: list[dict[str, str | int | bool]],
) -> tuple[tuple[KernelArg, ...], int, tuple[int, ...]]:
    from .bundle_dialect import BundleSyntaxError

    args, extents = [], []
    pool_bytes = 0
    for i, attributes in enumerate(described):
        place = f"argument {i} of @sdsc_bundle"
        if "max" in attributes:
            extents.append(int(attributes["max"]))
        elif "nbytes" not in attributes or extents or pool_bytes:
            raise BundleSyntaxError(place, "expected tensors with nbytes, the pool, then extents")
        elif attributes.get("is_pool"):
            pool_bytes = int(attributes["nbytes"])
        else:
            name = str(attributes.get("format"))
            if name not in DataFormat.__members__:
                known = ", ".join(DataFormat.__members__)
                raise BundleSyntaxError(place, f"format '{name}'; expected one of {known}")
            number = DataFormat[name].number
            written = bool(attributes.get("is_written"))
            args.append(KernelArg(number, int(attributes["nbytes"]), written))
    return tuple(args), pool_bytes, tuple(extents)


def _count_files(body: tuple[Node, ...], file: str) -> int:
    from .bundle import For

    used: set[int] = set()
    pending = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, For):
            pending += node.body
        else:
            used.add(node.sdsc)
    if used != set(range(len(used))):
        missing = min(set(range(len(used))) - used)
        raise BundleError(file, "", f"nothing executes sdsc_{missing}.json: numbers have a gap")
    return len(used)


_FILE = re.compile(r"sdsc_(\d+)\.json")


def file_number(name: str) -> int | None:
    """The n of "sdsc_<n>.json"."""
    match = _FILE.fullmatch(name)
    return int(match[1]) if match else None
