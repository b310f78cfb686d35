"""`torch.spyre` as a device: enumeration, current device, properties, wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading

import pytest
import torch


def test_import_torch_alone_gives_the_device_and_opens_no_card(check_python):
    check_python(
        """
        import sys, torch
        assert torch.spyre.is_available() and torch.spyre.device_count() == 1
        assert not torch.spyre.is_initialized()
        assert torch.device("spyre").type == "spyre"
        assert "torch._inductor" not in sys.modules and "torch._dynamo" not in sys.modules
        torch.empty(1, device="spyre")
        assert torch.spyre.is_initialized()
        """
    )


def test_the_accelerator_api_answers_for_spyre():
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.accelerator.device_count() == torch.spyre.device_count()
    assert torch.accelerator.current_device_index() == torch.spyre.current_device()
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device.type == "spyre"


def test_properties_are_those_of_the_card():
    properties = torch.spyre.get_device_properties()
    assert (properties.cores, properties.lx_bytes, properties.stick_bytes) == (32, 2 << 20, 128)
    assert properties.multi_processor_count == 32
    assert torch.spyre.get_device_name() == properties.name
    assert torch.float16 in torch.spyre.get_device_capability()["supported_dtypes"]
    assert torch.float64 not in torch.spyre.get_device_capability()["supported_dtypes"]


def test_several_cards_are_separate_devices(check_python):
    check_python(
        """
        import torch
        assert torch.spyre.device_count() == 3
        x = torch.arange(6.0, device="spyre:2")
        assert x.device.index == 2
        with torch.spyre.device(1):
            assert torch.spyre.current_device() == 1
            y = torch.empty(3, device="spyre")
            assert y.device.index == 1
        assert torch.spyre.current_device() == 0
        z = x.to("spyre:1")
        assert z.device.index == 1 and torch.equal(z.cpu(), x.cpu())
        y.copy_(x[3:])
        assert y.tolist() == [3, 4, 5]
        try:
            x + z
        except RuntimeError as error:
            assert "same device" in str(error)
        else:
            raise AssertionError("mixed devices")
        """,
        AIU_WORLD_SIZE="3",
    )


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"AIU_WORLD_SIZE": "4", "SPYRE_DEVICES": "0,2,2,9"}, 2),
        ({"LOCAL_WORLD_SIZE": "2"}, 2),
        ({"AIU_WORLD_SIZE": "8"}, 8),
        ({"SPYRE_DEVICES": "7"}, 0),
    ],
)
def test_environment_decides_how_many_devices_are_visible(check_python, environment, count):
    done = check_python("import torch; print(torch.spyre.device_count())", **environment)
    assert int(done.stdout) == count


def test_local_rank_is_the_default_device(check_python):
    done = check_python(
        "import torch; print(torch.empty(1, device='spyre').device)",
        AIU_WORLD_SIZE="2",
        LOCAL_RANK="1",
    )
    assert done.stdout.strip() == "spyre:1"


WRONG_VALUES = [
    ("AIU_WORLD_SIZE", "9", "from 1 to 8"),
    ("AIU_WORLD_SIZE", "two", "from 1 to 8"),
    ("SPYRE_DEVICES", "0,x", "separated by commas"),
    ("FLEX_DEVICE", "PF", "no such driver in this build"),
    ("FLEX_DEVICE", "CUDA", "SIM"),
    ("SPYRE_CARD_MEMORY", "lots", "number of bytes"),
    ("SPYRE_CARD_MEMORY", "-1", "number of bytes"),
    ("SPYRE_CARD_MEMORY", "1", "number of bytes"),
    ("SPYRE_CARD_THREADS", "0", "from 1 to"),
    ("SPYRE_CARD_ISA", "v9", "baseline"),
    ("SPYRE_MONITOR", "maybe", "true/false"),
    ("TORCH_SPYRE_DOWNCAST_WARN", "maybe", "true/false"),
    ("TORCH_SPYRE_DEBUG", "2", "true/false"),
    ("SENCORES", "33", "from 1 to 32"),
    ("LX_PLANNING", "2", "true/false"),
    ("DXP_LX_FRAC_AVAIL", "1.5", "below 1"),
    ("LAYOUT_SOLVER", "luck", "greedy, firstfit, bestfit or exact"),
    ("SPYRE_PLAN", "best", "full or basic"),
    ("SPYRE_DUMP_COST", "all", "true/false"),
    ("SPYRE_INDUCTOR_LOG", "yes", "true/false"),
    ("SPYRE_INDUCTOR_LOG_LEVEL", "LOUD", "debug, info, warning or error"),
    ("SPYRE_LOG_FILE", "/no/such/folder/log", "a file, or a name for one in a directory"),
    ("SPYRE_CARD_CHECK", "2", "0 (off), 1"),
    ("TORCH_SPYRE_FALLBACK", "maybe", "warn"),
    ("TORCH_SPYRE_FFDC", "2", "true/false"),
    ("TORCH_SPYRE_FFDC_DIR", "/dev/null", "a directory"),
    ("TORCH_SPYRE_PROGRESS", "2", "true/false"),
    ("TORCH_SPYRE_TIMING", "2", "true/false"),
]


@pytest.fixture(scope="module")
def complaints():
    """What is said about each wrong value; variables are read anew until all of them are right."""
    script = f"""
        import json, os, torch
        found = []
        for variable, value, _ in {WRONG_VALUES!r}:
            os.environ[variable] = value
            try:
                torch.empty(1, device="spyre")
            except ValueError as error:
                found.append(str(error))
            else:
                found.append("")
            del os.environ[variable]
        print(json.dumps(found))
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(WRONG_VALUES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", WRONG_VALUES, ids=lambda case: f"{case[0]}={case[1]}")
def test_a_wrong_environment_value_is_named_and_never_ignored(complaints, case):
    variable, value, expected = case
    said = complaints[case]
    assert variable in said and value in said and expected in said


def test_an_unknown_device_index_says_how_many_there_are():
    for make in (
        lambda: torch.empty(1, device="spyre:5"),
        lambda: torch.spyre.set_device(5),
        lambda: torch.ones(1).to("spyre:5"),
        lambda: torch.spyre.get_device_properties(5),
    ):
        with pytest.raises(RuntimeError, match="this process sees 1 card"):
            make()
    with pytest.raises(ValueError, match="negative"):
        torch.spyre.set_device(-1)
    with pytest.raises(ValueError, match="expected a spyre device"):
        torch.spyre.synchronize("cpu")
    with pytest.raises(TypeError, match="expected a device"):
        torch.spyre.set_device(1.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.uint16, torch.uint32])
def test_a_dtype_that_the_card_lacks_is_a_type_error_that_names_it(dtype):
    for make in (
        lambda: torch.empty(2, dtype=dtype, device="spyre"),
        lambda: torch.ones(2, dtype=torch.float32).to(dtype).to("spyre"),
        lambda: torch.spyre.get_device_dtype(dtype),
    ):
        with pytest.raises(TypeError, match=str(dtype)):
            make()


def test_negative_sizes_are_rejected():
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="spyre")
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty_strided((2, -3), (1, 1), device="spyre")


def test_default_device_and_device_context():
    with torch.device("spyre"):
        assert torch.zeros(2).device.type == "spyre"
    torch.set_default_device("spyre")
    try:
        assert torch.ones(2, 2).device.type == "spyre"
    finally:
        torch.set_default_device(None)


def test_fork_after_the_card_was_opened_is_a_clear_error(check_python):
    done = check_python(
        """
        import os, torch
        x = torch.ones(4, device="spyre")
        pid = os.fork()
        if pid == 0:
            try:
                torch.ones(4, device="spyre")
            except RuntimeError as error:
                os._exit(7 if "spawn" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        print((x + 1).tolist())
        """
    )
    assert "2.0" in done.stdout


def test_fork_before_the_card_was_opened_works(check_python):
    check_python(
        """
        import os, torch
        torch.spyre.device_count()
        pid = os.fork()
        value = (torch.ones(4, device="spyre") + 1).sum().item()
        if pid == 0:
            os._exit(int(value))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 8
        """
    )


def test_many_threads_may_start_the_device_at_once(check_python):
    check_python(
        """
        import threading, torch
        results = []
        def work(i):
            x = torch.full((100, 70), float(i)).to("spyre")
            results.append(bool((x + 1).cpu().eq(i + 1).all()))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert results == [True] * 16
        """
    )


def test_the_current_device_and_stream_belong_to_a_thread():
    stream = torch.spyre.Stream()
    seen = []
    with stream:
        thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_stream().id))
        thread.start()
        thread.join()
        assert torch.spyre.current_stream().id == stream.id
    assert seen == [0]


def test_a_broken_extension_does_not_break_import_torch(check_python, tmp_path):
    package = tmp_path / "torch_spyre"
    package.mkdir()
    (package / "__init__.py").write_text((torch_spyre_source()).read_text())
    (package / "_register.py").write_text("raise ImportError('undefined symbol: at::something')")
    done = check_python(
        """
        import torch
        print(torch.ones(2).sum().item(), hasattr(torch, "spyre"))
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert done.stdout.strip() == "2.0 False"
    assert done.stderr.count("could not be loaded") == 1 and "undefined symbol" in done.stderr


def torch_spyre_source():
    import pathlib

    import torch_spyre

    return pathlib.Path(torch_spyre.__file__)


def test_the_diagnostic_report_names_versions_devices_and_environment():
    torch.spyre.init()
    report = torch.spyre.get_diagnostic_report()
    assert report["torch"] == torch.__version__ and report["device_count"] == 1
    assert report["devices"][0]["properties"]["cores"] == 32


def test_a_wrong_environment_makes_the_device_unavailable_with_a_warning(check_python):
    done = check_python("import torch; print(torch.spyre.is_available())", AIU_WORLD_SIZE="9")
    assert done.stdout.strip() == "False" and "AIU_WORLD_SIZE" in done.stderr
    assert check_python("import torch; print(torch.spyre.device_count())", LOCAL_RANK="-1").stdout
