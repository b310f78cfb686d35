"""A bundle survives its directory, and is the same kernel wherever it came from."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backend.spec_kernels import FP16, arg, column, in_a_loop, kernels, lx, matrix, pool
from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre.ir.bundle import Bundle
from torch_spyre.ir.spec import Dim, KernelArg, KernelSpec, LoopSpec, Mask, OpSpec, Origin
from torch_spyre.ir.superdsc import BundleError

RANDOM = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=25,
)

UNKNOWN = Origin()


def neg(x, y, origin: Origin = UNKNOWN, names: tuple[str, str] = ("c0", "c1")) -> OpSpec:
    dims = (Dim(names[0], 8, 4), Dim(names[1], 128))
    return OpSpec("neg", "pointwise", dims, (x, y), stick=1, lanes=64, origin=origin)


def small(origin: Origin = UNKNOWN, names: tuple[str, str] = ("c0", "c1")) -> Bundle:
    """In two nested loops: from an argument through LX to the pool."""
    first = neg(
        matrix(True, arg(0), 8, 128, loop_bytes=(4096, 2048)),
        matrix(False, lx(0), 2, 128),
        origin,
        names,
    )
    second = neg(matrix(True, lx(0), 2, 128), matrix(False, pool(0), 8, 128), names=names)
    body = LoopSpec(3, (LoopSpec(2, (first,)), second))
    args = (KernelArg(FP16, 3 * 4096, False),)
    return bundle_of(KernelSpec(args, (body,), pool_bytes=2048, extents=(300, 64)))


@RANDOM
@given(kernels(), st.integers(1, 3))
def test_reading_a_written_bundle_gives_the_same(tmp_path, kernel, count):
    bundle = bundle_of(in_a_loop(kernel, count) if count > 1 else kernel)
    bundle.write(tmp_path)
    again = Bundle.read(tmp_path)
    assert again == bundle
    assert again.content_hash == bundle.content_hash
    assert again.sdscs == bundle.sdscs and again.body == bundle.body and again.args == bundle.args


def test_loops_args_and_addresses_can_be_read_in_the_mlir(tmp_path):
    bundle = small()
    bundle.write(tmp_path)
    assert Bundle.read(tmp_path) == bundle
    assert (tmp_path / "bundle.mlir").read_text() == MLIR


MLIR = """\
#map_0 = affine_map<(d0, d1)[s0] -> (s0 + 4096*d0 + 2048*d1)>
module {
  func.func @sdsc_bundle(%arg0: !sdscbundle.input_arg<index> {format = "SEN169_FP16", \
nbytes = 12288 : i64}, %pool: !sdscbundle.input_arg<index> {is_pool, nbytes = 2048 : i64}, \
%extent_0: !sdscbundle.input_arg<i32> {max = 300 : i64}, \
%extent_1: !sdscbundle.input_arg<i32> {max = 64 : i64}) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %loop_bound_0 = arith.constant 3 : index
    %loop_bound_1 = arith.constant 2 : index
    %lx = sdscbundle.lx
    %sym_0 = sdscbundle.address %arg0 : !sdscbundle.input_arg<index>
    %sym_pool = sdscbundle.address %pool : !sdscbundle.input_arg<index>
    scf.for %i_0 = %c0 to %loop_bound_0 step %c1 {
      scf.for %i_1 = %c0 to %loop_bound_1 step %c1 {
        %addr_0 = affine.apply #map_0(%i_0, %i_1)[%sym_0]
        sdscbundle.sdsc_execute (%addr_0, %lx) {sdsc_filename="sdsc_0.json"}
      }
      sdscbundle.sdsc_execute (%lx, %sym_pool) {sdsc_filename="sdsc_1.json"}
    }
    return
  }
}
"""


def test_where_operations_come_from_and_what_dimensions_are_called_is_no_part_of_a_kernel():
    plain = small()
    named = small(Origin("/home/me/model.py", 41, "forward", "-x", "aten.neg"), ("rows", "cols"))
    assert plain == named and hash(plain) == hash(named)
    assert plain.content_hash == named.content_hash
    assert plain.origins != named.origins


def test_origins_are_kept_in_a_side_file_without_absolute_paths(tmp_path):
    small(Origin("/home/me/model.py", 41, "forward", "-x", "aten.neg")).write(tmp_path)
    assert "/home/me" not in "".join(path.read_text() for path in tmp_path.iterdir())
    origins = Bundle.read(tmp_path).origins
    assert origins[0] == Origin("model.py", 41, "forward", "-x", "aten.neg")
    assert origins[1] == Origin()
    handle = json.loads((tmp_path / "sdsc_0.json").read_text())["neg"]["debug_handle_"]
    assert list(json.loads((tmp_path / "debug.json").read_text())) == [str(handle)]
    (tmp_path / "debug.json").unlink()
    assert Bundle.read(tmp_path) == small()


def test_other_numbers_are_another_kernel():
    first = small()
    args = (KernelArg(FP16, 3 * 4096 + 128, False),)
    assert Bundle(first.sdscs, first.body, args, first.pool_bytes, first.extents) != first


@RANDOM
@given(kernels())
def test_a_packed_bundle_is_the_same(kernel):
    bundle = bundle_of(kernel)
    again = Bundle.unpack(bundle.pack())
    assert again == bundle and again.origins == bundle.origins
    with pytest.raises(BundleError, match="damaged"):
        Bundle.unpack(bundle.pack()[:-5])


def test_the_hash_is_the_same_in_another_process(tmp_path):
    small().write(tmp_path)
    script = (
        "import sys; from torch_spyre.ir.bundle import Bundle; "
        "print(Bundle.read(sys.argv[1]).content_hash)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == small().content_hash


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sdsc_1.json", "sdsc_7.json", "bundle.mlir: nothing executes sdsc_1.json"),
        ("sdsc_1.json", "other.json", 'bundle.mlir: "other.json": expected a file sdsc_<n>.json'),
        ("SEN169_FP16", "FP17", "bundle.mlir: argument 0 of @sdsc_bundle: format 'FP17'"),
        ("constant 1 :", "constant 2 :", "bundle.mlir: loop i: expected a count from 0"),
        ("4096*d0", "4096*d0*d1", "bundle.mlir: "),
        ("2048*d1", "d1 floordiv 2", 'bundle.mlir: "sdsc_0.json": '),
        ("%lx = sdscbundle.lx", "", "bundle.mlir: "),
        ("@sdsc_bundle", "@other", "bundle.mlir: expected one function, @sdsc_bundle"),
    ],
)
def test_a_damaged_mlir_is_named_with_its_place(tmp_path, old, new, message):
    small().write(tmp_path)
    assert old in MLIR
    (tmp_path / "bundle.mlir").write_text(MLIR.replace(old, new))
    with pytest.raises(BundleError) as caught:
        Bundle.read(tmp_path)
    assert str(caught.value).startswith(message)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BundleError, match="bundle.mlir: can't be read"):
        Bundle.read(tmp_path)
    small().write(tmp_path)
    (tmp_path / "sdsc_1.json").unlink()
    with pytest.raises(BundleError, match="sdsc_1.json: can't be read"):
        Bundle.read(tmp_path)


def test_masks_and_extents_survive(tmp_path):
    x, y = matrix(True, arg(0), 4, 192), column(False, arg(1), 4)
    spec = OpSpec(
        "sum",
        "reduction",
        (Dim("r", 4), Dim("c", 192)),
        (x, y),
        stick=1,
        lanes=64,
        reduced=(1,),
        masks=(Mask(1, 0, is_symbol=True, loop_positions=()),),
    )
    args = (KernelArg(FP16, 1536, False), KernelArg(FP16, 512, True))
    bundle = bundle_of(KernelSpec(args, (spec,), extents=(192,)))
    bundle.write(tmp_path)
    assert Bundle.read(tmp_path) == bundle


def test_writing_and_compiling_do_not_import_xdsl():
    script = (
        "import sys, torch_spyre.backend.lower, torch_spyre._inductor.codegen.superdsc, "
        "torch_spyre.ir.bundle_mlir; sys.exit('xdsl' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
