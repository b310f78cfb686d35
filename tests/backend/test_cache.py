"""The SpyreCode cache, and kernels as generated code gets them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import replay_kernels
import torch
from replay_kernels import add_kernel, add_views

from torch_spyre._inductor import runtime
from torch_spyre._inductor.codegen.superdsc import bundle_of
from torch_spyre.backend import cache
from torch_spyre.backend import compile as compiling
from torch_spyre.backend.cache import SpyreCodeCache, SpyreCodeCacheWarning
from torch_spyre.backend.compile import compile_bundle


@pytest.fixture
def kept(tmp_path: Path) -> SpyreCodeCache:
    return SpyreCodeCache(tmp_path / "spyrecode")


@pytest.fixture
def lowered(monkeypatch) -> list[str]:
    """The hashes of bundles that were lowered, in order."""
    found: list[str] = []
    lower = compiling.lower

    def counted(bundle):
        found.append(bundle.content_hash)
        return lower(bundle)

    monkeypatch.setattr(compiling, "lower", counted)
    return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    runtime.reset()
    yield
    runtime.reset()


# ---- Files --------------------------------------------------------------------------------------


def test_a_kernel_is_lowered_once(kept, lowered):
    first = compile_bundle(bundle_of(add_kernel()), kept)
    again = compile_bundle(bundle_of(add_kernel()), SpyreCodeCache(kept.directory))
    assert first == again and len(lowered) == 1
    assert (kept.statistics.hits, kept.statistics.misses) == (0, 1)


def test_equal_kernels_of_two_models_share_a_file_and_keep_their_lines(kept, lowered):
    one = compile_bundle(bundle_of(add_kernel(line=41)), kept)
    other = compile_bundle(bundle_of(add_kernel(line=77)), kept)
    assert len(lowered) == 1 and one.program == other.program
    assert one.manifest.steps[0].source == "model.py:41  y = a + b"
    assert other.manifest.steps[0].source == "model.py:77  y = a + b"


def test_other_kernels_have_other_files(kept, lowered):
    compile_bundle(bundle_of(add_kernel(rows=96)), kept)
    compile_bundle(bundle_of(add_kernel(rows=128)), kept)
    assert len(lowered) == 2 and len(list(kept.directory.rglob("*.spyrecode"))) == 2


def test_a_damaged_file_is_warned_about_and_compiled_again(kept, lowered):
    bundle = bundle_of(add_kernel())
    code = compile_bundle(bundle, kept)
    path = kept.path(cache.key_of(bundle.content_hash))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(SpyreCodeCacheWarning, match=f"{path} is damaged.*compiled again"):
        assert compile_bundle(bundle, kept) == code
    assert len(lowered) == 2
    assert compile_bundle(bundle, kept) == code and len(lowered) == 2  # repaired


def test_another_back_end_does_not_find_the_files_of_this_one(kept, lowered, monkeypatch):
    compile_bundle(bundle_of(add_kernel()), kept)
    monkeypatch.setattr(cache, "back_end", lambda: "another")
    compile_bundle(bundle_of(add_kernel()), kept)
    assert len(lowered) == 2


def test_a_disk_that_can_not_be_written_costs_only_time(tmp_path):
    (tmp_path / "file").write_text("no directory")
    kept = SpyreCodeCache(tmp_path / "file")
    with pytest.warns(SpyreCodeCacheWarning):
        assert compile_bundle(bundle_of(add_kernel()), kept).program


def test_inductors_switch_switches_this_cache_off_too():
    from torch._inductor import config

    assert cache.default_cache() is not None
    with config.patch(force_disable_caches=True):
        assert cache.default_cache() is None


# ---- Kernels of generated code ------------------------------------------------------------------


def run(kernel: runtime.SpyreKernel) -> None:
    a, b = torch.randn(96, 200).half(), torch.randn(96, 200).half()
    out = torch.empty(96, 200, dtype=torch.float16, device="spyre")
    kernel.launch((a.to("spyre"), b.to("spyre"), out), ())
    assert torch.allclose(out.cpu(), a + b, atol=2e-2)


def test_a_serialized_kernel_runs():
    text = runtime.serialize_kernel(bundle_of(add_kernel()), add_views())
    kernel = runtime.spyre_kernel(text, "fused_add")
    run(kernel)
    assert kernel.wait().name == "fused_add"
    assert text.isascii() and '"' not in text and "'" not in text and "\\" not in text
    run(runtime.spyre_kernel(text.encode(), "fused_add"))


def test_caches_that_are_off_are_off_in_the_threads_that_compile(lowered):
    text = runtime.serialize_kernel(bundle_of(add_kernel()), add_views())
    with torch.compiler.config.patch(force_disable_caches=True):
        runtime.spyre_kernel(text, "add").wait()
    runtime.reset()
    runtime.spyre_kernel(text, "add").wait()
    assert len(lowered) == 2  # nothing was kept
    runtime.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        runtime.spyre_kernel(text, "add").wait()
    assert len(lowered) == 3  # what was kept is not used


def test_a_serialized_kernel_runs_with_the_cache_deleted(lowered):
    text = runtime.serialize_kernel(bundle_of(add_kernel()), add_views())
    runtime.spyre_kernel(text, "add").wait()
    runtime.reset()
    runtime.spyre_kernel(text, "add").wait()
    assert len(lowered) == 1  # from the cache
    found = cache.default_cache()
    assert found is not None
    for file in found.directory.rglob("*.spyrecode"):
        file.unlink()
    runtime.reset()
    run(runtime.spyre_kernel(text, "add"))
    assert len(lowered) == 2


def test_equal_kernels_are_one_kernel_under_two_names():
    runtime.reset()
    text = runtime.serialize_kernel(bundle_of(add_kernel(line=41)), add_views())
    other = runtime.serialize_kernel(bundle_of(add_kernel(line=77)), add_views())
    a, b = runtime.spyre_kernel(text, "a").wait(), runtime.spyre_kernel(other, "b").wait()
    assert (a.name, b.name) == ("a", "b")
    assert len(runtime.kernels()) == 1
    run(runtime.spyre_kernel(other, "b"))


def test_kernels_compile_in_the_background_and_can_be_waited_for(lowered):
    texts = [
        runtime.serialize_kernel(bundle_of(add_kernel(rows=rows)), add_views(rows=rows))
        for rows in (32, 64, 96, 128)
    ]
    kernels = [runtime.spyre_kernel(text, "add") for text in texts]
    runtime.wait()
    assert len(lowered) == 4
    run(kernels[2])


def test_an_error_of_the_back_end_is_raised_where_the_kernel_is_used(monkeypatch):
    def fail(bundle):
        raise ValueError("sdsc_0.json: .add: not today")

    text = runtime.serialize_kernel(bundle_of(add_kernel(rows=160)), add_views(rows=160))
    with monkeypatch.context() as patched:
        patched.setattr(compiling, "lower", fail)
        kernel = runtime.spyre_kernel(text, "add")
        with pytest.raises(ValueError, match="not today"):
            kernel.launch((), ())
    runtime.spyre_kernel(text, "add").wait()  # a failure is not remembered


def test_views_must_fit_the_bundle():
    with pytest.raises(ValueError, match="2 views for a bundle of 3 arguments"):
        runtime.serialize_kernel(bundle_of(add_kernel()), add_views()[:2])


def test_a_second_process_does_not_compile_again(check_python, tmp_path):
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(replay_kernels.__file__).parent)!r})
        from replay_kernels import add_kernel, add_views
        from torch_spyre._inductor import runtime
        from torch_spyre._inductor.codegen.superdsc import bundle_of
        from torch_spyre.backend import cache
        text = runtime.serialize_kernel(bundle_of(add_kernel()), add_views())
        runtime.spyre_kernel(text, "add").wait()
        print(cache.default_cache().statistics)
    """
    script = textwrap.dedent(script)
    folder = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    assert "hits=0, misses=1" in check_python(script, **folder).stdout
    assert "hits=1, misses=0" in check_python(script, **folder).stdout


def test_a_forked_child_compiles_with_threads_of_its_own(check_python, tmp_path):
    done = check_python(
        f"""
        import os, sys
        sys.path.insert(0, {str(Path(replay_kernels.__file__).parent)!r})
        from replay_kernels import add_kernel, add_views
        from torch_spyre._inductor import runtime
        from torch_spyre._inductor.codegen.superdsc import bundle_of
        def compiled(rows):
            text = runtime.serialize_kernel(bundle_of(add_kernel(rows=rows)), add_views(rows=rows))
            return runtime.spyre_kernel(text, "add").wait()
        compiled(32)
        child = os.fork()
        if child == 0:
            compiled(64)
            os._exit(0)
        print("child", os.waitpid(child, 0)[1])
        """,
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
    )
    assert "child 0" in done.stdout
