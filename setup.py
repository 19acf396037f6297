"""Builds the launch handler: a C library without Python's ABI, in a wheel for every Python 3.

Everything else about the package is in pyproject.toml.
"""

import gzip
import os
import pathlib
import re
import runpy
import subprocess
import tarfile

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HANDLER = "oxijax._core.launch.libhandler"
SOURCE = "oxijax/_core/launch/handler.c"
SEAL = runpy.run_path("oxijax/_core/launch/_seal.py")


class BuildHandler(build_ext):
    """Compiles a plain shared library; without a compiler it says so, and the build goes on."""

    def get_ext_filename(self, fullname):  # without the suffix that names a Python version
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext):  # without PyInit_
        return ext.export_symbols

    def run(self):
        # What an earlier build has left, in a build folder or beside the source, must not pass for
        # what this one has built.
        for path in {*self.get_outputs(), *self.get_output_mapping().values()}:
            pathlib.Path(path).unlink(missing_ok=True)
        super().run()
        if not all(pathlib.Path(path).is_file() for path in self.get_outputs()):
            self.warn(
                "oxijax is built without its launch handler, for want of a working C compiler: "
                "it runs on the CPU, but neither on a GPU nor in the emulator"
            )

    def build_extension(self, ext):
        import jaxlib

        for folder in jaxlib.__path__:
            ext.include_dirs.append(str(pathlib.Path(folder) / "include"))
        self.compiler.linker_so = without_folders(self.compiler.linker_so)
        os.environ.pop("LD_RUN_PATH", None)
        super().build_extension(ext)
        SEAL["seal"](pathlib.Path(self.get_ext_fullpath(ext.name)), pathlib.Path(SOURCE))

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        for built, path in self.get_output_mapping().items():
            if built.endswith(SEAL["SUFFIX"]) and pathlib.Path(built).is_file():
                self.copy_file(built, path)

    def get_outputs(self):
        return list(dict.fromkeys(with_seals(super().get_outputs())))

    def get_output_mapping(self):
        mapping = super().get_output_mapping()
        return dict(zip(with_seals(mapping), with_seals(mapping.values()), strict=True))


def with_seals(libraries):
    """The paths of libraries, each with that of its seal."""
    paths = [pathlib.Path(library) for library in libraries]
    return [str(p) for path in paths for p in (path, path.with_suffix(SEAL["SUFFIX"]))]


def without_folders(command):
    """A link command without the folders of the builder's Python, which the library would name."""
    kept, words = [], iter(command)
    for word in words:
        if word == "-Wl,-rpath":
            next(words, None)  # the folder
        elif not word.startswith(("-L", "-Wl,-rpath,", "-Wl,-rpath=")):
            kept.append(word)
    return kept


class PlatformWheel(bdist_wheel):
    """Tags the wheel for any Python 3, and for the platforms on which the handler in it runs."""

    def get_tag(self):
        build = self.get_finalized_command("build_ext")
        library, seal = map(pathlib.Path, build.get_outputs())
        if not (library.is_file() and seal.is_file()):
            return "py3", "none", "any"
        platform = super().get_tag()[2]
        if platform.startswith("linux_"):
            try:
                flags = getattr(build.compiler, "compiler_so", [])  # none where it was not run
                minor = max(OLDEST_GLIBC, needed_glibc(library, flags))
                platform = platform.replace("linux_", f"manylinux_2_{minor}_")
            except UnprovenError as error:
                self.warn(f"the wheel is for machines such as this one, {platform}: {error}")
        return "py3", "none", platform


OLDEST_GLIBC = 17  # of glibc 2: the oldest with wheels on every architecture
GLIBC_LIBRARIES = r"libc\.so\.6|ld-linux-[\w-]+\.so\.\d"
BASELINES = {"x86-64", "armv8-a"}


class UnprovenError(Exception):
    """Says why it is not known that a library runs wherever there is some version of glibc."""


def needed_glibc(library, flags):
    """The minor version of glibc 2 that a library needs, which must need nothing else.

    It is the newest of the versions of symbols that the library asks for, as PEP 600 has it.
    """
    for flag in flags:
        option, _, machine = flag.partition("=")
        if option in ("-march", "-mcpu") and machine not in BASELINES:
            raise UnprovenError(f"it is compiled with {flag}")
    try:
        said = subprocess.run(
            ["objdump", "--private-headers", str(library)],
            env={**os.environ, "LC_ALL": "C"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnprovenError(f"what the library needs is not known: {error}") from None
    needed = re.findall(r"^ +NEEDED +(\S+)$", said, re.M)
    if not needed or not all(re.fullmatch(GLIBC_LIBRARIES, name) for name in needed):
        raise UnprovenError(f"the library needs {', '.join(needed) or 'no libc.so.6'}")
    versions = re.findall(
        r"^ +0x\S+ 0x\S+ \d+ (\S+)$", said.partition("Version References:")[2], re.M
    )
    minors = [m[1] for v in versions if (m := re.fullmatch(r"GLIBC_2\.(\d+)(?:\.\d+)?", v))]
    if not minors or len(minors) < len(versions):
        raise UnprovenError(f"the versions of symbols are {', '.join(versions) or 'not known'}")
    return max(map(int, minors))


class SourceArchive(sdist):
    """Writes the same bytes for the same files, where SOURCE_DATE_EPOCH says what time it is."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch is None or format != "gztar" or base_dir is None:
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)

        def plain(member):
            member.mtime, member.mode = int(epoch), 0o755 if member.mode & 0o100 else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            return member

        path = f"{base_name}.tar.gz"
        self.mkpath(os.path.dirname(path))
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(base_dir, filter=plain)
        return path


setup(
    cmdclass={"build_ext": BuildHandler, "bdist_wheel": PlatformWheel, "sdist": SourceArchive},
    ext_modules=[
        Extension(
            HANDLER,
            [SOURCE],
            extra_compile_args=["-std=c11", "-O2", "-g0", "-fvisibility=hidden"],
            extra_link_args=["-s"],
            optional=True,
        )
    ],
)
