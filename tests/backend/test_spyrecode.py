"""SpyreCode on disk: what is written is what is read, and what is damaged is named."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_kernels import KERNELS, add_kernel, pool_kernel

from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre.backend import program
from torch_spyre.backend.compile import compile_afresh, compile_bundle
from torch_spyre.backend.spyrecode import OtherVersionError, SpyreCode, SpyreCodeError


@pytest.fixture(scope="module")
def code() -> SpyreCode:
    return compile_afresh(bundle_of(add_kernel()))


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_written_is_what_is_read(name, tmp_path):
    code = compile_afresh(bundle_of(KERNELS[name]()))
    code.write(tmp_path / "kernel.spyrecode")
    assert SpyreCode.read(tmp_path / "kernel.spyrecode") == code


def test_the_same_bundle_gives_the_same_bytes():
    one, same = (compile_afresh(bundle_of(add_kernel())).encode() for _ in range(2))
    assert one == same


def test_the_manifest_says_what_a_launch_needs():
    bundle = bundle_of(pool_kernel())
    manifest = compile_afresh(bundle).manifest
    assert manifest.bundle == bundle.content_hash
    assert [(a.format, a.nbytes, a.is_written) for a in manifest.arguments] == [
        ("SEN169_FP16", 2 * 32 * 128, False),
        ("SEN169_FP16", 2 * 32 * 128, True),
    ]
    assert manifest.pool_bytes == 2 * 32 * 128
    assert manifest.constants == (0x40000000,)  # 2.0
    assert [step.op for step in manifest.steps] == ["mul", "relu"]


def test_the_manifest_says_where_steps_come_from(code):
    (step,) = code.manifest.steps
    assert step.source == "model.py:41  y = a + b"
    assert step.file == "sdsc_0.json"
    assert step.buffers == ("arg0", "arg1", "buf0")


def test_an_archive_opens_with_other_tools(code):
    with zipfile.ZipFile(io.BytesIO(code.encode())) as archive:
        assert archive.namelist() == ["manifest.json", "program.bin"]
        assert json.loads(archive.read("manifest.json"))["bundle"] == code.manifest.bundle
        assert program.decode(archive.read("program.bin")).symbols


@given(data=st.data())
def test_a_damaged_archive_is_never_taken_for_a_whole_one(code, data):
    whole = code.encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    if data.draw(st.booleans()):
        damaged[at] ^= data.draw(st.integers(1, 255))
    else:
        del damaged[at:]
    # Some bytes of a zip file (dates, attributes) mean nothing to anybody: those may change.
    with contextlib.suppress(SpyreCodeError):
        assert SpyreCode.decode(bytes(damaged)) == code


def test_a_damaged_file_is_named(code, tmp_path):
    path = tmp_path / "kernel.spyrecode"
    path.write_bytes(code.encode()[:-40])
    with pytest.raises(SpyreCodeError, match=f"{path} is damaged"):
        SpyreCode.read(path)


def test_another_version_is_told_apart_from_damage(code):
    old = msgspec.structs.replace(code.manifest, program_version=program.VERSION - 1)
    with pytest.raises(OtherVersionError, match="compile its bundle again"):
        SpyreCode.decode(SpyreCode(old, code.program).encode())


def test_a_reader_never_sees_half_a_file(code, tmp_path):
    path = tmp_path / "kernel.spyrecode"
    code.write(path)
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            code.write(path)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(200):
            assert SpyreCode.read(path) == code
    finally:
        stop.set()
        writer.join()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_origins_are_no_part_of_a_kernels_identity(tmp_path: Path):
    one, other = bundle_of(add_kernel(line=41)), bundle_of(add_kernel(line=77))
    assert one == other
    assert compile_bundle(one).program == compile_bundle(other).program
