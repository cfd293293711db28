"""The wheel: what is in it, what it needs from a machine, and that it works where it is installed."""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
RUNFILES = pathlib.Path.cwd() / "python"
sys.path.insert(0, str(RUNFILES / "wheel"))
import elf  # noqa: E402

(WHEEL,) = (RUNFILES / "stoker_wheel").glob("*.whl")
LIBRARIES = ["libstoker_cpu.so", "libstoker_cuda.so"]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(WHEEL) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The Python of a new environment with the wheel and, by a path file, the torch of this one."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps",
                    "--no-compile", "--disable-pip-version-check", WHEEL], check=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "torch_of_the_tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def everything(unpacked):
    return [*sorted((unpacked / "stoker/lib").iterdir()), unpacked / "stoker/bin/stoker"]


def test_the_platform_tag_is_that_of_the_symbols_needed(unpacked):
    tag = elf.platform_tag([elf.read(path) for path in everything(unpacked)])
    assert WHEEL.name.endswith(f"-py3-none-{tag}.whl")


def test_a_newer_glibc_or_libstdcxx_is_refused_by_name():
    def needs(version):
        return [elf.Needs(frozenset(), frozenset([version]), frozenset(), frozenset())]

    assert elf.platform_tag(needs("GLIBC_2.14")) == "manylinux_2_28_x86_64"
    assert elf.platform_tag(needs("GLIBCXX_3.4.30")) == "manylinux_2_35_x86_64"
    for version in ["GLIBC_2.36", "GLIBCXX_3.4.31", "GLIBC_PRIVATE"]:
        with pytest.raises(ValueError, match=version):
            elf.platform_tag(needs(version))


def test_every_library_needed_is_inside_or_the_systems_or_torchs(unpacked):
    inside = {path.name for path in (unpacked / "stoker/lib").iterdir()}
    for path in everything(unpacked):
        outside = elf.read(path).libraries - elf.SYSTEM - elf.TORCH - inside
        assert not outside, f"{path.name} needs {outside}"
    assert not elf.read(unpacked / "stoker/bin/stoker").libraries - elf.SYSTEM, "the command must stand alone"


@pytest.mark.parametrize("name", LIBRARIES)
def test_only_the_stable_abi_of_torch_is_used(unpacked, name):
    unstable = [symbol for symbol in elf.read(unpacked / "stoker/lib" / name).undefined
                if symbol.startswith(("_ZN2at", "_ZNK2at", "_ZN3c10", "_ZNK3c10", "_ZN5torch", "_ZNK5torch",
                                      "_ZTIN3c10", "_ZTVN3c10", "_ZTIN2at", "_ZTVN2at"))]
    assert not unstable


@pytest.mark.parametrize("name", LIBRARIES)
def test_only_the_c_functions_are_seen_and_neither_nccl_nor_cudart_is_linked(unpacked, name):
    needs = elf.read(unpacked / "stoker/lib" / name)
    # Inline functions of the standard library are everyone's, and the linker keeps them beside those of libstdc++.
    own = {symbol for symbol in needs.defined if not symbol.startswith(("_ZNSt", "_ZNKSt"))}
    assert own and all(symbol.startswith("stoker_") for symbol in own), own
    assert not [library for library in needs.libraries if "nccl" in library or "cudart" in library]
    assert not [symbol for symbol in needs.undefined if symbol.startswith(("nccl", "cuda", "cu"))]


def test_the_gpu_code_is_that_of_the_build(unpacked):
    code = elf.gpu_code(unpacked / "stoker/lib/libstoker_cuda.so")
    everywhere = {("sm", arch) for arch in (80, 90, 100, 103)} | {("compute", 103)}
    assert code in ({("sm", 90)}, everywhere), code


def test_an_environment_without_anything_else_runs_the_ops(installed):
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run([installed, HERE / "installed_check.py"], capture_output=True, text=True, cwd="/",
                          env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["stoker"].startswith(str(installed.parents[1])), facts


def test_the_command_is_the_program_inside(installed):
    done = subprocess.run([installed.parent / "stoker"], capture_output=True, text=True, cwd="/", timeout=120)
    assert done.returncode == 2 and "stoker COMMAND" in done.stderr, done.stdout + done.stderr


def test_the_bundled_abseil_is_used_where_the_system_has_another(installed):
    code = ("import stoker; "
            "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libabsl' in line}, sep='\\n')")
    done = subprocess.run([installed, "-c", code], capture_output=True, text=True, cwd="/", check=True,
                          timeout=120)
    mapped = done.stdout.split()
    assert mapped and all(path.startswith(str(installed.parents[1])) for path in mapped), mapped


def test_another_cuda_major_is_named(installed):
    code = ("import torch; torch.version.cuda = '12.8'; import stoker; "
            "stoker.Communicator.from_process_group(device='cpu').close(); print('the CPU ops work'); "
            "stoker.Communicator.from_process_group(device='cuda')")
    done = subprocess.run([installed, "-c", code], capture_output=True, text=True, cwd="/", timeout=120)
    assert done.returncode == 1 and "the CPU ops work" in done.stdout, done.stdout + done.stderr
    assert "built for CUDA 13, torch was built for CUDA 12.8" in done.stderr, done.stderr


def test_a_torch_without_cuda_needs_no_cuda_library(installed):
    code = ("import torch; torch.version.cuda = None; import stoker; assert stoker.cuda_library() is None; "
            "print('cuda' in str({line for line in open('/proc/self/maps') if 'libstoker' in line}))")
    done = subprocess.run([installed, "-c", code], capture_output=True, text=True, cwd="/", check=True,
                          timeout=120)
    assert done.stdout.strip() == "False"


def test_vllm_finds_the_plug_in(installed):
    site = next((installed.parents[1] / "lib").glob("python3*/site-packages"))
    (distribution,) = importlib.metadata.distributions(name="stoker", path=[str(site)])
    assert [(e.name, e.value) for e in distribution.entry_points if e.group == "vllm.general_plugins"] == [
        ("stoker", "stoker.vllm:register")]
