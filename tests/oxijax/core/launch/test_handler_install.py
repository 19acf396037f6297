"""The handler library in an installation: compiled and sealed, damaged, and mended.

Each test installs or builds a copy of the project in folders of its own, without the network.
"""

import functools
import hashlib
import http.server
import importlib.util
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import threading
import venv
import zipfile

import pytest
import setuptools
from support.paths import ROOT
from support.sanitizers import run

from oxijax._core.launch import _seal
from oxijax._core.launch._handler import find_handler

LAUNCH = pathlib.Path("oxijax", "_core", "launch")
NO_COMPILER = {"CC": "/nonexistent/cc"}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture
def checkout(tmp_path):
    """A copy of the project in which nothing has been built."""
    folder = tmp_path / "checkout"
    built = shutil.ignore_patterns("*.so", "*.sha256", "__pycache__")
    for name in ("oxijax", "ptx"):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def execute(*command, folder=None, **settings) -> str:
    """What a command says, which has to succeed; of Python packages it sees those of this test."""
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "LDFLAGS")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**environment, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build_inplace(checkout, **settings) -> str:
    return execute(
        *(sys.executable, "setup.py", "build_ext", "--inplace"), folder=checkout, **settings
    )


def build_wheel(checkout, **settings) -> pathlib.Path:
    options = "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir"
    wheels = checkout / "wheels"
    execute(*PIP, "wheel", *options, wheels, checkout, **settings)
    (wheel,) = wheels.glob("*.whl")
    return wheel


# What is built.


def test_wheel_has_the_library_its_source_and_its_seal(checkout, tmp_path):
    wheel = build_wheel(checkout)
    assert re.fullmatch(r"oxijax-.*-py3-none-manylinux_2_17_\w+\.whl", wheel.name)
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    assert _seal.fault(tmp_path / "unpacked" / LAUNCH / "libhandler.so") is None


def test_wheel_for_the_builders_processor_is_for_this_platform(checkout):
    build = "from setuptools import build_meta; build_meta.build_wheel('wheels')"
    said = execute(sys.executable, "-c", build, folder=checkout, CFLAGS="-march=native")
    assert re.search(r"as this one, linux_\w+: it is compiled with -march=native", said), said
    (wheel,) = (checkout / "wheels").glob("*.whl")
    assert re.fullmatch(r"oxijax-.*-py3-none-linux_\w+\.whl", wheel.name)


def test_two_builds_give_the_same_bytes(checkout, tmp_path):
    build = "from setuptools import build_meta as m; m.build_sdist('made'); m.build_wheel('made')"
    shutil.copytree(checkout, tmp_path / "another" / "place", copy_function=shutil.copyfile)
    made = []
    for folder in (checkout, tmp_path / "another" / "place"):
        execute(sys.executable, "-c", build, folder=folder, SOURCE_DATE_EPOCH="1700000000")
        files = sorted((folder / "made").iterdir())
        made.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
    assert [name.rpartition(".")[2] for name in made[0]] == ["whl", "gz"]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("name", "version", "needed"),
    [
        pytest.param("libc.so.6", "GLIBC_2.2.5", 2, id="old"),
        pytest.param("libc.so.6", "GLIBC_2.99", 99, id="new"),
        pytest.param("ld-linux-aarch64.so.1", "GLIBC_2.17", 17, id="loader"),
        pytest.param("libc.so.6", "GLIBC_ABI_DT_RELR", "GLIBC_ABI_DT_RELR", id="feature"),
        pytest.param("libc.so.6", "GLIBC_PRIVATE", "GLIBC_PRIVATE", id="private"),
        pytest.param("libm.so.6", "GLIBC_2.2.5", "needs libm.so.6", id="library"),
        pytest.param("libc.musl-x86_64.so.1", None, "needs libc.musl", id="musl"),
    ],
)
def test_needed_glibc(tmp_path, monkeypatch, name, version, needed):
    """Of a library that takes one symbol from a library of that name, in that version."""
    monkeypatch.setattr(setuptools, "setup", lambda **settings: None)
    monkeypatch.chdir(ROOT)
    script = runpy.run_path("setup.py")
    (tmp_path / "map").write_text(f"{version or ''} {{ global: symbol; }};")
    (tmp_path / "needed.c").write_text("int symbol(void) { return 1; }")
    (tmp_path / "library.c").write_text("int symbol(void); int f(void) { return symbol(); }")
    shared = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o"]
    link = [f"-Wl,--version-script={tmp_path}/map", f"-Wl,-soname,{name}"]
    run([*shared, f"{tmp_path}/{name}", f"{tmp_path}/needed.c", *link])
    library = tmp_path / "library.so"
    run([*shared, str(library), f"{tmp_path}/library.c", f"{tmp_path}/{name}"])
    if isinstance(needed, int):
        assert script["needed_glibc"](library, ["gcc", "-O2"]) == needed
    else:
        with pytest.raises(script["UnprovenError"], match=needed):
            script["needed_glibc"](library, ["gcc", "-O2"])


def test_wheel_without_compiler_is_for_any_platform(checkout):
    build_wheel(checkout)  # leaves a library in the build folder, which must not be taken
    shutil.rmtree(checkout / "wheels")
    wheel = build_wheel(checkout, **NO_COMPILER)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert str(LAUNCH / "handler.c") in names
    assert not [name for name in names if name.endswith((".so", ".sha256"))]


@pytest.mark.parametrize(
    "flags", ["-Wl,-rpath,/builder/lib", "-Wl,-rpath=/builder/lib", "-Wl,-rpath -Wl,/builder/lib"]
)
def test_library_does_not_say_where_the_builders_python_lies(checkout, flags):
    build_inplace(checkout, LDFLAGS=f"-L/builder/lib {flags}", LD_RUN_PATH="/builder/lib")
    library = checkout / LAUNCH / "libhandler.so"
    assert "builder" not in library.read_bytes().decode("latin-1")
    assert not re.findall("RUNPATH|RPATH", run(["readelf", "--dynamic", str(library)]))


def test_failing_compiler_leaves_no_earlier_library(checkout):
    build_inplace(checkout)
    library = checkout / LAUNCH / "libhandler.so"
    assert _seal.fault(library) is None
    said = build_inplace(checkout, **NO_COMPILER)
    assert "without its launch handler" in said
    assert not library.exists()
    assert not library.with_suffix(".sha256").exists()


# What damages it.

IMPORT = """
import jax, jax.numpy as jnp
import oxijax
from oxijax._core.launch import HandlerMissingError
from oxijax.testing import emulate_gpu

one = jnp.ones((8, 8))
assert oxijax.gemm(one, one, strategy="shallow_k")[0, 0] == 8
f = jax.jit(lambda one: oxijax.gemm(one, one, strategy="shallow_k"))
try:
    with emulate_gpu():
        print(f(one)[0, 0])
except HandlerMissingError as error:
    print(error)
try:
    f.trace(one).lower(lowering_platforms=("cuda",))
except HandlerMissingError as error:
    print(error)
"""

USABLE = "8.0\n"


def cut(size):
    def change(library):
        library.write_bytes(library.read_bytes()[:size])

    return change


def change_a_byte(library):
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)


def is_no_library(library):
    library.write_text("no library")
    _seal.seal(library, library.with_name("handler.c"))


def lacks_a_function(library):
    library.write_bytes(library.read_bytes().replace(b"oxijax_layout", b"oxijax_Layout"))
    _seal.seal(library, library.with_name("handler.c"))


def change_the_source(library):
    with library.with_name("handler.c").open("a") as file:
        file.write("/* newer */\n")


def remove_the_seal(library):
    library.with_suffix(".sha256").unlink()


def change_jax(library):
    """JAX refuses to register it."""
    with (library.parents[1] / "process.py").open("a") as file:
        file.write(
            "\n\ndef refuse(*args, **kwargs):\n    raise ValueError('not this one')\n\n\n"
            "import jax.ffi\njax.ffi.register_ffi_target = refuse\n"
        )


@pytest.mark.spread(2)
@pytest.mark.quick
@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda library: None, None, id="none"),
        *[pytest.param(cut(n), "it is damaged", id=f"cut-{n}") for n in (0, 1, 5000, 12000, 20000)],
        pytest.param(change_a_byte, "it is damaged", id="byte"),
        pytest.param(is_no_library, "it cannot be loaded", id="no-library"),
        pytest.param(lacks_a_function, "it cannot be loaded", id="function"),
        pytest.param(change_the_source, "compiled from another handler.c", id="source"),
        pytest.param(remove_the_seal, "cannot be compared with what was compiled", id="seal"),
        pytest.param(change_jax, "cannot be registered with JAX", id="registration"),
    ],
)
def test_without_a_sound_library_the_cpu_path_works(tmp_path, change, said):
    installed = find_handler()
    cache = shutil.ignore_patterns("__pycache__")
    for package in ("oxijax", "ptx"):
        shutil.copytree(installed.parents[3] / package, tmp_path / package, ignore=cache)
    change(tmp_path / LAUNCH / installed.name)
    settings = {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    printed = execute(sys.executable, "-c", IMPORT, folder=tmp_path, **settings)
    if said is None:
        assert printed == USABLE
    else:
        assert len(re.findall(said, printed)) == 2, printed
        assert len(re.findall("Install oxijax again: pip install", printed)) == 2


# A checkout that is imported instead of what is installed.

WHICH = """
import oxijax
from oxijax._core.launch import HandlerMissingError, find_handler
from oxijax.testing import emulate_gpu

print(oxijax.__file__)
try:
    with emulate_gpu():
        print(find_handler())
except HandlerMissingError as error:
    print(error)
"""


def install_beside(checkout, folder):
    """Puts what pip installs of a checkout into a folder, with this process's library."""
    built = find_handler()
    for name in ("oxijax", "ptx"):
        shutil.copytree(checkout / name, folder / name)
    for file in (built, built.with_suffix(".sha256")):
        shutil.copy(file, folder / LAUNCH)
    (folder / "oxijax-0.1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: oxijax\nVersion: 0.1.0\n"
    (folder / "oxijax-0.1.0.dist-info" / "METADATA").write_text(metadata)
    return folder / LAUNCH / built.name


def run_in(checkout, site) -> str:
    settings = {"PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
    return execute(sys.executable, "-c", WHICH, folder=checkout, **settings)


def test_a_checkout_uses_the_installed_library_of_the_same_source(checkout, tmp_path):
    library = install_beside(checkout, tmp_path / "site")
    printed = run_in(checkout, tmp_path / "site").splitlines()
    assert printed == [str(checkout / "oxijax" / "__init__.py"), str(library)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(change_a_byte, "it is damaged", id="byte"),
        pytest.param(None, "it was compiled from another handler.c than {checkout}", id="source"),
    ],
)
def test_a_checkout_uses_no_other_installed_library(checkout, tmp_path, change, said):
    library = install_beside(checkout, tmp_path / "site")
    (change or change_the_source)(library if change else checkout / LAUNCH / library.name)
    printed = run_in(checkout, tmp_path / "site")
    assert f"oxijax is imported from its checkout {checkout}, where" in printed
    assert f'pip install -e "{checkout}"' in printed
    assert f"because {said.format(checkout=checkout)}" in printed
    assert f"\n{library}\n" in printed
    assert "python -P" in printed


def test_a_checkout_alone_says_what_builds_the_library(checkout, tmp_path):
    printed = run_in(checkout, tmp_path)
    assert f'With a C compiler this builds it: pip install -e "{checkout}"\n' in printed


# What mends it.


@pytest.fixture
def index(tmp_path):
    """The address of a package index on this machine, and the folder of oxijax in it."""
    folder = tmp_path / "index" / "oxijax"
    folder.mkdir(parents=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    handler = functools.partial(Quiet, directory=str(folder.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", folder
        server.shutdown()
        thread.join()


def new_environment(folder: pathlib.Path) -> pathlib.Path:
    """The Python of a new environment that has what this one has, but for oxijax."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("setuptools", "jax"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        for entry in pathlib.Path(spec.origin).parents[1].iterdir():
            if "oxijax" not in entry.name and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.mark.slow
def test_the_remedy_is_one(checkout, index, tmp_path):
    """From a source archive pip builds once, with or without a compiler: it caches the wheel."""
    address, folder = index
    sdist = (
        "from setuptools import build_meta; import sys; print(build_meta.build_sdist(sys.argv[1]))"
    )
    execute(sys.executable, "-c", sdist, folder, folder=checkout)
    python = new_environment(tmp_path / "environment")
    settings = {
        "PIP_INDEX_URL": address,
        "PIP_CACHE_DIR": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONPATH": "",
        "JAX_PLATFORMS": "cpu",
    }

    def pip(*command, **more):
        execute(*PIP, "--python", python, *command, **settings, **more)

    def install(options, **more):
        pip("install", "--no-build-isolation", *options.split(), "oxijax", **more)

    def say():
        return execute(python, "-c", IMPORT, folder=tmp_path, **settings)

    install("--no-deps", **NO_COMPILER)
    said = say()
    assert "installed without its launch handler" in said
    (remedy,) = set(re.findall(r"pip install (--.*) oxijax\.", said))
    assert "pip cache remove oxijax" in said

    install(remedy.replace("--no-cache-dir", ""))
    assert "installed without its launch handler" in say()  # what pip has cached
    install(remedy)
    assert say() == USABLE

    pip("cache", "remove", "oxijax")
    install("--force-reinstall --no-deps")
    assert say() == USABLE
