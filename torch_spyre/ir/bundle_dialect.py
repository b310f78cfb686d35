"""The MLIR dialect `sdscbundle`, in xDSL, and the loop program read out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects import affine, arith, builtin, func, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, StringAttr
from xdsl.ir import Attribute, Block, Dialect, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    result_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from .bundle import Address, Execute, For, Node
from .bundle_mlir import file_number

if TYPE_CHECKING:
    from collections.abc import Sequence


class BundleSyntaxError(Exception):
    """What is wrong with a bundle.mlir, and where."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(what)
        self.place, self.what = place, what


@irdl_attr_definition
class InputArg(ParametrizedAttribute, TypeAttribute):
    """What a launch binds: the address of a tensor (index) or a valid length (i32)."""

    name = "sdscbundle.input_arg"
    kind: Attribute


@irdl_op_definition
class AddressOp(IRDLOperation):
    """The address that is bound to an argument."""

    name = "sdscbundle.address"
    arg = operand_def(InputArg)
    result = result_def(IndexType)
    assembly_format = "$arg attr-dict `:` type($arg)"


@irdl_op_definition
class LxOp(IRDLOperation):
    """The start of each core's scratchpad."""

    name = "sdscbundle.lx"
    result = result_def(IndexType)
    assembly_format = "attr-dict"


@irdl_op_definition
class ExecuteOp(IRDLOperation):
    """Run a SuperDSC, with one address per tensor."""

    name = "sdscbundle.sdsc_execute"
    addresses = var_operand_def(IndexType)
    sdsc_filename = attr_def(StringAttr)
    assembly_format = "`(` $addresses `)` attr-dict"


SdscBundle = Dialect("sdscbundle", [AddressOp, LxOp, ExecuteOp], [InputArg])


def function(text: str) -> func.FuncOp:
    """Parse and verify; the one function of the module."""
    context = Context()
    for dialect in (
        affine.Affine,
        arith.Arith,
        builtin.Builtin,
        func.Func,
        scf.Scf,
        SdscBundle,
    ):
        context.load_dialect(dialect)
    try:
        module = Parser(context, text).parse_module()
        module.verify()
    except (ParseError, VerifyException, NotImplementedError) as error:
        raise BundleSyntaxError("", str(error).strip()) from None
    functions = [op for op in module.ops if isinstance(op, func.FuncOp)]
    if len(functions) != 1 or functions[0].sym_name.data != "sdsc_bundle":
        raise BundleSyntaxError("", "expected one function, @sdsc_bundle")
    return functions[0]


def signature(bundle: func.FuncOp) -> list[dict[str, str | int | bool]]:
    """The attributes of each argument, as plain values."""
    attributes = bundle.arg_attrs.data if bundle.arg_attrs else ()
    found: list[dict[str, str | int | bool]] = []
    for described in attributes:
        assert isinstance(described, builtin.DictionaryAttr)
        found.append({name: _plain(value) for name, value in described.data.items()})
    return found


def _plain(attribute: Attribute) -> str | int | bool:
    if isinstance(attribute, StringAttr):
        return attribute.data
    if isinstance(attribute, IntegerAttr):
        return attribute.value.data
    return True


def read_body(bundle: func.FuncOp) -> tuple[Node, ...]:
    """The loops and executions of the function."""
    return _Body(bundle).read(bundle.body.block, ())


class _Body:
    def __init__(self, bundle: func.FuncOp) -> None:
        self.args = bundle.body.block.args
        attributes = signature(bundle)
        self.is_pool = [bool(described.get("is_pool")) for described in attributes]

    def read(self, block: Block, loops: tuple[SSAValue, ...]) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                place = f"loop {op.body.block.args[0].name_hint or ''}".strip()
                if _constant(op.lb, place) != 0 or _constant(op.step, place) != 1:
                    raise BundleSyntaxError(place, "expected a count from 0 in steps of 1")
                inner = self.read(op.body.block, (*loops, op.body.block.args[0]))
                nodes.append(For(_constant(op.ub, place), inner))
            elif isinstance(op, ExecuteOp):
                name = op.sdsc_filename.data
                number = file_number(name)
                if number is None:
                    raise BundleSyntaxError(f'"{name}"', "expected a file sdsc_<n>.json")
                addresses = (self.address(value, loops, name) for value in op.addresses)
                nodes.append(Execute(number, tuple(addresses)))
        return tuple(nodes)

    def address(self, value: SSAValue, loops: Sequence[SSAValue], name: str) -> Address:
        steps = (0,) * len(loops)
        owner = value.owner
        if isinstance(owner, affine.ApplyOp):
            steps, value = _linear(owner, loops, name)
            owner = value.owner
        if isinstance(owner, LxOp):
            return Address("lx", 0, steps)
        if not isinstance(owner, AddressOp) or owner.arg not in self.args:
            raise BundleSyntaxError(
                f'"{name}"', "an address is affine in loop indices and one bound address"
            )
        index = self.args.index(owner.arg)
        if self.is_pool[index]:
            return Address("pool", 0, steps)
        return Address("arg", index, steps)


def _constant(value: SSAValue, place: str) -> int:
    owner = value.owner
    if not isinstance(owner, arith.ConstantOp) or not isinstance(owner.value, IntegerAttr):
        raise BundleSyntaxError(place, "bounds and steps are constants")
    return owner.value.value.data


def _linear(
    apply: affine.ApplyOp, loops: Sequence[SSAValue], name: str
) -> tuple[tuple[int, ...], SSAValue]:
    """symbol + Σ bytes · loop index, as bytes per enclosing loop and the symbol."""
    mapping = apply.map.data
    operands = list(apply.mapOperands)
    indices, symbols = operands[: mapping.num_dims], operands[mapping.num_dims :]
    wrong = BundleSyntaxError(
        f'"{name}"', f"{mapping} is not s0 + Σ bytes * index over the indices of enclosing loops"
    )
    if len(symbols) != 1 or any(index not in loops for index in indices):
        raise wrong

    def at(point: Sequence[int], symbol: int) -> int:
        return mapping.eval(list(point), [symbol])[0]

    zero = [0] * len(indices)
    units = [[int(i == j) for j in range(len(indices))] for i in range(len(indices))]
    steps = [at(unit, 0) for unit in units]
    far = [1009 + 3 * i for i in range(len(indices))]
    expected = 7919 + sum(step * i for step, i in zip(steps, far, strict=True))
    if at(zero, 0) != 0 or at(far, 7919) != expected:
        raise wrong
    per_loop = dict.fromkeys(range(len(loops)), 0)
    for index, step in zip(indices, steps, strict=True):
        per_loop[list(loops).index(index)] += step
    return tuple(per_loop.values()), symbols[0]
