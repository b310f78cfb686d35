"""SuperDSC: one operation for all cores, as the JSON file `sdsc_<n>.json` spells it.

The structs mirror the file field by field (`docs/superdsc.md` explains them); the file itself is
`{operation: SuperDSC}`. Per-core values are folded: `alpha_ * index + beta_` over the core's slice
number and the positions within its slice.

Normative, and all that the back end reads: `N_`, `numWkSlicesPerDim_`, `coreIdToWkSlice_`,
`labeledDs_`, `scheduleTree_`, `coordinateMasking_`, `constantInfo_`, `computeOp_`. The other fields
follow from these; one that is present and disagrees is an error.
"""

from __future__ import annotations

import enum
import functools
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from .storage import STICK_BYTES

SCHEMA_FILE = Path(__file__).with_name("superdsc.schema.json")

RESTICKIFY = "restickify"
RELAYOUT = "relayout"
MATMULS = ("batchmatmul", "batchmatmul_int8")
NO_CONSTANT = -1
ELEMENTWISE, STICKWISE = 1, 2  # values of CoordInfo.elemArr


class DataFormat(enum.Enum):
    """The card's number formats that operations compute with, by their names in a SuperDSC."""

    SEN169_FP16 = "SEN169_FP16"
    IEEE_FP32 = "IEEE_FP32"
    SEN143_FP8 = "SEN143_FP8"
    SEN152_FP8 = "SEN152_FP8"
    SENINT8 = "SENINT8"
    SENINT16 = "SENINT16"
    IEEE_INT32 = "IEEE_INT32"
    SENUINT32 = "SENUINT32"

    # Plain attributes, not properties: the back end asks for them per operand.
    number: int
    nbytes: int
    lanes: int  # elements per stick
    domain: Literal["F", "I"]


_FORMATS: dict[str, tuple[int, int, Literal["F", "I"]]] = {
    "SEN169_FP16": (0, 2, "F"),
    "IEEE_FP32": (1, 4, "F"),
    "SEN143_FP8": (3, 1, "F"),
    "SEN152_FP8": (4, 1, "F"),
    "SENINT8": (8, 1, "I"),
    "SENINT16": (9, 2, "I"),
    "IEEE_INT32": (12, 4, "I"),
    "SENUINT32": (13, 4, "I"),
}
for _format in DataFormat:
    _format.number, _format.nbytes, _format.domain = _FORMATS[_format.value]
    _format.lanes = STICK_BYTES // _format.nbytes

FORMAT_BY_NUMBER = {fmt.number: fmt for fmt in DataFormat}


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object with exactly these fields."""


class FoldProp(_Record, frozen=True, omit_defaults=True):
    """How many values the index of a fold takes, and what it counts.

    In `coordInfo` a fold counts along the iteration dimension that its entry is named after;
    `dim_` names it where the entry has another name.
    """

    factor_: int
    label_: str
    dim_: str | None = None


class Affine(_Record, frozen=True):
    """alpha_ * index + beta_"""

    alpha_: int
    beta_: int


class Empty(_Record, frozen=True):
    """`{}`: a function without parameters."""


class Indirect(_Record, frozen=True):
    """The value that the tensor `ldsIdx_` holds for this iteration."""

    ldsIdx_: int


class FoldFunction(_Record, frozen=True, omit_defaults=True):
    """One of: `Affine`; `Map` (looked up in `data_`); `Const` (the same for all); `Indirect`."""

    Affine: Affine | None = None
    Map: Empty | None = None
    Const: Empty | None = None
    Indirect: Indirect | None = None


class Folds(_Record, frozen=True):
    """A function and a property per fold; what they describe is the sum over all of them."""

    dim_prop_func: tuple[FoldFunction, ...]
    dim_prop_attr: tuple[FoldProp, ...]


class FoldedData(_Record, frozen=True):
    """Values over folds; the keys of `data_` are the indices, "[core, corelet, time]"."""

    dim_prop_func: tuple[FoldFunction, ...]
    dim_prop_attr: tuple[FoldProp, ...]
    data_: dict[str, int]


class CoordInfo(_Record, frozen=True):
    """How iterations move along one device dimension.

    elemArr 1: positions are those of the dimension. elemArr 2: the dimension is the stick
    dimension and counts elements; elem_arr_0 runs through the lanes, all else in whole sticks.
    """

    spatial: int
    temporal: int
    elemArr: int
    padding: str
    folds: Folds


class Coordinates(_Record, frozen=True):
    """The coordinates of a tensor, by device dimension."""

    coordInfo: dict[str, CoordInfo]
    coreIdToWkSlice_: dict[str, dict[str, int]] = {}


class Allocate(_Record, frozen=True):
    """Where a tensor lies and how its device dimensions follow each other, outermost first.

    The source of a relayout lies in the scratchpads of `coreIdToOwners_`: by core, one for each
    position of the dimensions along which the source stands still and that cores do not divide,
    in row-major order.
    """

    nodeType_: Literal["allocate"]
    name_: str
    prev_: str
    ldsIdx_: int
    component_: Literal["hbm", "lx"]
    layoutDimOrder_: tuple[str, ...]
    maxDimSizes_: tuple[int, ...]
    startAddressCoreCorelet_: FoldedData
    coordinates_: Coordinates
    backGapCore_: dict[str, dict[str, int]] = {}
    coreIdToOwners_: dict[str, tuple[int, ...]] | msgspec.UnsetType = msgspec.UNSET


class Presence(_Record, frozen=True):
    """Is a tensor in this memory?"""

    isPresent: bool


class LabeledDs(_Record, frozen=True):
    """A tensor operand: scale_ is 1 along dimensions that it is iterated along, −1 where it is
    broadcast or reduced away, −2 where its sticks are reduced."""

    ldsIdx_: int
    dsName_: str
    dsType_: str
    scale_: dict[str, int]
    wordLength: int
    dataFormat_: DataFormat
    memOrg_: dict[str, Presence]


class PrimaryDs(_Record, frozen=True):
    """The layout of a class of tensors, outermost dimension first."""

    layoutDimOrder_: tuple[str, ...]
    stickDimOrder_: tuple[str, ...]
    stickSize_: tuple[int, ...]


class Constant(_Record, frozen=True):
    """A value for all lanes (its bits, under "[0, 0, 0]"), or a count over the dimensions."""

    name_: str
    dataFormat_: DataFormat
    data_: FoldedData


class MaskedRange(_Record, frozen=True, omit_defaults=True):
    """Positions [start_, end_) of a dimension that do not count.

    A start_ "extent_<n>" is the launch's n-th extent. Within loops, position 0 of the dimension
    stands at loopOffsets_ · loop indices of the whole.
    """

    start_: int | str
    end_: int
    loopOffsets_: tuple[int, ...] = ()


class Attributes(_Record, frozen=True):
    """In which format the unit computes."""

    dataFormat_: DataFormat
    fidelity_: str


class ComputeOp(_Record, frozen=True):
    """The operation: which unit does it, on which tensors ("Tensor0-idx0", "Constant0-idx0")."""

    exUnit: Literal["pt", "sfp"]
    opFuncName: str
    attributes_: Attributes
    location: str
    inputLabeledDs: tuple[str, ...]
    outputLabeledDs: tuple[str, ...]


class StageExtents(_Record, frozen=True):
    """Extents of one core's slice: of all slices but the last, and of the last."""

    ss_: dict[str, int | str]
    el_: dict[str, int | str]


class Dsc(_Record, frozen=True):
    """What the cores do, each on its slice."""

    numCoresUsed_: int
    coreIdsUsed_: tuple[int, ...]
    N_: dict[str, int | str]
    dataStageParam_: dict[str, StageExtents]
    primaryDsInfo_: dict[str, PrimaryDs]
    labeledDs_: tuple[LabeledDs, ...]
    scheduleTree_: tuple[Allocate, ...]
    coordinateMasking_: dict[str, tuple[MaskedRange, ...]]
    maskingConstId_: int
    constantInfo_: dict[str, Constant]
    computeOp_: tuple[ComputeOp, ...]


class SuperDSC(_Record, frozen=True):
    """One operation on its cores. Holds no debug handle in memory: see `torch_spyre.ir.bundle`."""

    coreFoldProp_: FoldProp
    coreletFoldProp_: FoldProp
    numCoresUsed_: int
    numWkSlicesPerDim_: dict[str, int]
    coreIdToWkSlice_: dict[str, dict[str, int]]
    coreIdToDsc_: dict[str, int]
    coreIdToDscSchedule: dict[str, tuple[tuple[int, ...], ...]]
    sdscFoldProps_: tuple[FoldProp, ...]
    sdscFolds_: FoldedData
    dscs_: tuple[dict[str, Dsc], ...]
    debug_handle_: int = 0

    @property
    def name(self) -> str:
        """The operation's name, under which the file holds it."""
        return next(iter(self.dscs_[0]), "") if self.dscs_ else ""

    @property
    def dsc(self) -> Dsc:
        return self.dscs_[0][self.name]


_NEUTRAL = {
    "sum": 0,
    "sum_squares": 0,
    "mean": 0,
    "batchmatmul": 0,
    "batchmatmul_int8": 0,
    "sum_int": 0,
    "prod": 0x3F800000,  # 1.0
    "prod_int": 1,
    "amax": 0xFF800000,  # minus infinity
    "amin": 0x7F800000,
    "amax_int": 0x80000000,
    "amin_int": 0x7FFFFFFF,
}


def neutral_bits(operation: str) -> int | None:
    """What masked positions count as, in 32 bits; None for operations that have no such value."""
    return _NEUTRAL.get(operation)


class BundleError(ValueError):
    """A bundle that is not what it should be: the file, the place in it, and what is wrong."""

    def __init__(self, file: str, path: str, what: str) -> None:
        super().__init__(f"{file}: {path}: {what}" if path else f"{file}: {what}")
        self.file, self.path, self.what = file, path, what


def to_json(sdsc: SuperDSC, indent: int = 2) -> bytes:
    """The file `sdsc_<n>.json`."""
    text = msgspec.json.format(msgspec.json.encode({sdsc.name: sdsc}), indent=indent)
    return text + b"\n"


def from_json(text: bytes, file: str = "sdsc.json") -> SuperDSC:
    """Read a file back; raises BundleError with the place of what does not fit the schema."""
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BundleError(file, "", f"not JSON: {error}") from None
    try:
        decoded = msgspec.convert(document, dict[str, SuperDSC])
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        raise BundleError(file, _spell_out(document, path.strip("`"), message), message) from None
    if len(decoded) != 1:
        raise BundleError(file, ".", f"{len(decoded)} operations, one is expected")
    ((name, sdsc),) = decoded.items()
    if len(sdsc.dscs_) != 1 or list(sdsc.dscs_[0]) != [name]:
        raise BundleError(
            file, f".{name}.dscs_", f"expected one entry with the one key '{name}', the operation"
        )
    return sdsc


def _spell_out(document: Any, path: str, message: str) -> str:
    """msgspec's path of an error with the keys that it leaves out as `[...]`."""
    parts: list[str | int] = []
    here = document
    for name, index in re.findall(r"\.(\w+)|\[([^\]]*)\]", path):
        key: str | int = name or (int(index) if index.isdigit() else "...")
        if key == "...":
            key = next((k for k in here if _fails_alone(document, parts, k, message)), "...")
        parts.append(key)
        try:
            here = here[key]
        except (KeyError, IndexError, TypeError):
            here = {}
    return path_text(*parts)


def _fails_alone(document: Any, parts: list[str | int], key: str, message: str) -> bool:
    """Does the document still fail in this way if the object at `parts` has only this key?"""

    def keep_one(node: Any, rest: list[str | int]) -> Any:
        if not rest:
            return {key: node[key]}
        copy: Any = dict(node) if isinstance(node, dict) else list(node)
        copy[rest[0]] = keep_one(node[rest[0]], rest[1:])
        return copy

    try:
        msgspec.convert(keep_one(document, parts), dict[str, SuperDSC])
    except msgspec.ValidationError as error:
        return str(error).partition(" - at ")[0] == message
    return False


def path_text(*parts: str | int) -> str:
    """A place in a JSON document, as `jq` spells it: .add.labeledDs_[1].scale_"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


@functools.cache
def schema() -> bytes:
    """The JSON schema of a SuperDSC file."""
    described = msgspec.json.schema(dict[str, SuperDSC])
    described["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    described["title"] = "SuperDSC"
    described["minProperties"] = described["maxProperties"] = 1
    return msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_bytes(schema())
