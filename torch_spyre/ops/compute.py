"""Computes the table's formulas: operands into the right domain, steps, the result out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from torch_spyre.backend import opcodes
from torch_spyre.ops.emitter import Emitter
from torch_spyre.ops.formats import (
    FACT,
    FP32,
    INT32,
    LARGEST,
    Kind,
    card_format,
    fact,
    kind_of,
)
from torch_spyre.ops.plan import Argument, Bind, ScalarMeta, TensorMeta, UnsupportedError
from torch_spyre.ops.promotion import common_dtype
from torch_spyre.ops.registry import Expression, Formula, Pointwise, formula_for
from torch_spyre.ops.views import (
    Value,
    View,
    Word,
    constant,
    float_constant,
    int_constant,
    order_with_stick,
    view_of,
)

# Integer operations whose low bits depend only on the low bits of their operands, so that wrapping
# the result is enough.
_MODULAR = frozenset(
    [
        "add_scaled_int",
        "sub_scaled_int",
        "mul_int",
        "addcmul_int",
        "neg_int",
        "square_int",
        "bitwise_not",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "identity_int",
    ]
)
# Integer operations that give a byte for operands that are bytes.
_CLOSED_ON_BYTES = frozenset(
    [
        "maximum_int",
        "minimum_int",
        "clamp_int",
        "where_int",
        "remainder_int",
        "fmod_int",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "shift_right",
        "identity_int",
        "abs_int",
        "sign_int",
        "relu_int",
        "gcd",
    ]
)
_NARROW_INTS = (torch.int8, torch.int16, torch.uint8)


@dataclass
class Computation:
    """One operation: its arguments, where the result goes, and what is known along the way."""

    emitter: Emitter
    arguments: Mapping[str, Argument]
    out: View
    moved: Mapping[int, View] = field(default_factory=dict)  # arguments copied out of the way
    counter: int = 0  # of the random numbers that it takes

    # ---- Formulas ------------------------------------------------------------------------------

    def pointwise(self, entry: Pointwise) -> None:
        """Compute an entry of the table into the result."""
        constants = {
            name: value
            for name, value in self.arguments.items()
            if value is None or isinstance(value, str | bool)
        }
        formula, operands = formula_for(entry, constants)
        dtype = self._compute_dtype(entry, formula)
        expression = {
            Kind.FLOAT: formula.floats,
            Kind.INT: formula.ints,
            Kind.BOOL: formula.bools,
        }[kind_of(dtype)]
        if expression is None:
            raise UnsupportedError(f"the card has no {entry.name} for {dtype}")
        if isinstance(expression, str):
            expression = (expression, *operands)
        preparation = _Preparation(self, entry, dtype, _is_modular(expression, dtype))
        result_dtype = torch.bool if entry.gives_truth else dtype
        if result_dtype not in _NARROW_INTS or self.out.dtype is result_dtype:
            self._into(self.out, expression, preparation, result_dtype)
            return
        # PyTorch wraps the result around before it converts it.
        wrapped = self.emitter.temp(self.out.size, result_dtype)
        self._into(wrapped, expression, preparation, result_dtype)
        self.convert(wrapped, self.out)

    def _compute_dtype(self, entry: Pointwise, formula: Formula) -> torch.dtype:
        if not entry.promoted:
            return self.out.dtype
        dtype = common_dtype(self.arguments.get(name) for name in entry.promoted)
        if formula.promotes_to_float and kind_of(dtype) is not Kind.FLOAT:
            dtype = torch.get_default_dtype()
        # A float64 CPU scalar may promote to what the card doesn't hold; it computes in fp32.
        return torch.float32 if dtype is torch.float64 else dtype

    def _into(
        self, into: View, expression: Expression, preparation: _Preparation, dtype: torch.dtype
    ) -> None:
        assert isinstance(expression, tuple)
        opcode = str(expression[0])
        fits = opcodes.by_name()[opcode].result == into.format.domain
        if into.dtype is torch.bool:
            fits = dtype is torch.bool
        elif into.dtype is torch.uint8:
            fits = dtype is torch.uint8 and _gives_bytes(expression)
        if fits:
            self.evaluate(expression, preparation, into)
            return
        result = self.evaluate(expression, preparation)
        # A sum of bytes is not a byte yet: what is converted is an int32.
        self.convert(result, into, torch.int32 if dtype is torch.uint8 else dtype)

    def evaluate(
        self, expression: Expression, operands: _Preparation, into: View | None = None
    ) -> View:
        """Compute `(card operation, operand, ...)`, innermost first."""
        assert isinstance(expression, tuple)
        opcode = opcodes.by_name()[str(expression[0])]
        values: list[Value] = []
        for given, domain in zip(expression[1:], opcode.operands, strict=True):
            operand = operands.present(given)
            if isinstance(operand, tuple):
                values.append(self._shared(operand, operands))
            elif isinstance(operand, str) and operand.startswith(FACT):
                values.append(constant(fact(operand, operands.dtype), domain))
            elif isinstance(operand, str):
                values.append(operands[operand])
            else:
                values.append(constant(operand, domain))
        return self.emitter.apply(opcode.name, values, into)

    def _shared(self, expression: Expression, operands: _Preparation) -> View:
        """Part of a formula, computed once however often it appears in it."""
        if expression not in operands.parts:
            operands.parts[expression] = self.evaluate(expression, operands)
        return operands.parts[expression]

    # ---- Conversions ---------------------------------------------------------------------------

    def convert(self, value: Value, into: View, dtype: torch.dtype | None = None) -> None:
        """Convert elements to the dtype of `into`; `dtype` says what they are, if not obvious."""
        if dtype is None:
            assert isinstance(value, View)
            dtype = value.dtype
        source, target = kind_of(dtype), kind_of(into.dtype)
        if target is Kind.BOOL:
            opcode = {
                Kind.BOOL: "identity",
                Kind.INT: "int_to_bool",
                Kind.FLOAT: "float_to_bool",
            }[source]
            self.emitter.apply(opcode, [value], into)
        elif target is Kind.FLOAT:
            opcode = "int_to_float" if source is Kind.INT else "identity"
            self.emitter.apply(opcode, [value], into)
        elif into.dtype is torch.uint8 and dtype not in (torch.uint8, torch.bool):
            if source is Kind.FLOAT:
                value = self.emitter.apply("float_to_int", [value])
            self.emitter.apply("bitwise_and", [value, int_constant(255)], into)
        else:
            opcode = "identity_int" if source is Kind.INT else "float_to_int"
            self.emitter.apply(opcode, [value], into)

    def converted(self, value: Value, dtype: torch.dtype, source: torch.dtype) -> View:
        """The value in a temporary of another dtype, laid out like itself."""
        if isinstance(value, View):
            # Repeated elements are converted once.
            once = value.without_repeats()
            order = order_with_stick(len(once.size), once.stick_dim)
            into = self.emitter.temp(once.size, dtype, order)
            self.convert(once, into, source)
            return into.broadcast(value.size)
        into = self.emitter.temp((), dtype)
        self.convert(value, into, source)
        return into

    # ---- Operands ------------------------------------------------------------------------------

    def tensor(self, meta: TensorMeta) -> View:
        return self.moved.get(meta.index) or view_of(meta)

    def truth(self, argument: Argument) -> Value:
        """An argument as 1.0 and 0.0."""
        if isinstance(argument, TensorMeta):
            view = self.tensor(argument)
            if view.dtype is torch.bool:
                return view
            return self.converted(view, torch.bool, view.dtype)
        if isinstance(argument, ScalarMeta):
            word = Word(FP32, Bind("scalar_float", argument.index))
            if argument.dtype is torch.bool:
                return word
            return self.converted(word, torch.bool, torch.float32)
        return float_constant(float(bool(argument)))

    def number(
        self,
        argument: Argument,
        dtype: torch.dtype,
        is_modular: bool = False,
        must_fit: bool = False,
    ) -> Value:
        """A scalar argument in the domain of `dtype`, which it may have to fit."""
        is_int = kind_of(dtype) is Kind.INT
        if not isinstance(argument, ScalarMeta):
            assert isinstance(argument, bool | int | float)
            return constant(argument, "I" if is_int else "F")
        if not is_int:
            return Word(FP32, Bind("scalar_float", argument.index))
        is_narrow = dtype in _NARROW_INTS
        fits = dtype if is_narrow and must_fit else None
        word = Word(INT32, Bind("scalar_int", argument.index, fits=fits))
        if is_narrow and not is_modular and argument.dtype not in (dtype, torch.bool):
            return self.converted(word, dtype, torch.int32)
        return word

    def saturated(self, value: Value, dtype: torch.dtype) -> Value:
        """A scalar that stays finite in a narrower format if it is finite.

        Models mask with the most negative number of their dtype, which is beyond the card's
        16-bit range; as a constant it saturates, where arithmetic would overflow.
        """
        largest = LARGEST.get(dtype)
        if largest is None or not (isinstance(value, Word) and value.source is not None):
            return value
        return replace(value, source=replace(value.source, limit=largest))


def _consists_of(expression: Expression, allowed: frozenset[str]) -> bool:
    """Whether an integer expression applies no other integer operations than these."""
    if not isinstance(expression, tuple):
        return True
    opcode = opcodes.by_name()[str(expression[0])]
    parts = zip(expression[1:], opcode.operands, strict=True)
    return opcode.name in allowed and all(
        _consists_of(part, allowed) for part, domain in parts if domain == "I"
    )


def _gives_bytes(expression: Expression) -> bool:
    return _consists_of(expression, _CLOSED_ON_BYTES)


def _is_modular(expression: Expression, dtype: torch.dtype) -> bool:
    """Is wrapping the result enough? Not where nothing wraps it because bytes give a byte."""
    is_byte = dtype is torch.uint8 and _gives_bytes(expression)
    return _consists_of(expression, _MODULAR) and not is_byte


@dataclass
class _Preparation:
    """The operands of a formula by name, each converted on first use."""

    computation: Computation
    entry: Pointwise
    dtype: torch.dtype
    is_modular: bool
    parts: dict[Expression, View] = field(default_factory=dict)  # of the formula, as computed
    _ready: dict[str, Value] = field(default_factory=dict)

    def present(self, operand: Expression) -> Expression:
        """The operand itself, or what stands for it if the argument is None."""
        if isinstance(operand, str) and self.computation.arguments.get(operand, 0) is None:
            return self.entry.absent[operand]
        return operand

    def __getitem__(self, name: str) -> Value:
        if name not in self._ready:
            self._ready[name] = self._prepare(name)
        return self._ready[name]

    def _prepare(self, name: str) -> Value:
        computation, argument = self.computation, self.computation.arguments[name]
        if name in self.entry.truths:
            return computation.truth(argument)
        if isinstance(argument, TensorMeta):
            view = computation.tensor(argument)
            return self._tensor(view)
        if kind_of(self.dtype) is Kind.BOOL:
            return computation.truth(argument)
        must_fit = (
            isinstance(argument, ScalarMeta)
            and name in self.entry.must_fit
            # Tensors wrap around, except where PyTorch reads the number out of them.
            and (argument.is_wrapped or self.entry.name == "masked_fill")
        )
        value = computation.number(argument, self.dtype, self.is_modular, must_fit)
        if self.entry.saturates:
            value = computation.saturated(value, computation.out.dtype)
        is_rounded = card_format(self.dtype).nbytes < FP32.nbytes and self.dtype.is_floating_point
        if self.entry.compares and is_rounded:
            value = computation.converted(value, self.dtype, torch.float32)
        return value

    def _tensor(self, view: View) -> Value:
        if kind_of(view.dtype) is not kind_of(self.dtype) and not (
            kind_of(view.dtype) is Kind.BOOL and kind_of(self.dtype) is Kind.FLOAT
        ):
            return self.computation.converted(view, self.dtype, view.dtype)
        # A tensor without dimensions may have more bits than the common dtype.
        is_wrapped = self.dtype in _NARROW_INTS and view.dtype is not self.dtype
        if is_wrapped and not self.is_modular:
            return self.computation.converted(view, self.dtype, view.dtype)
        is_rounded = view.format.nbytes > card_format(self.dtype).nbytes
        if is_rounded and self.entry.compares:
            return self.computation.converted(view, self.dtype, view.dtype)
        return view
