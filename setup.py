"""Builds the launch handler: a C library without Python's ABI, in a wheel for every Python 3.

Everything else about the package is in pyproject.toml.
"""

import os
import pathlib
import runpy

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

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
    """Tags the wheel for any Python 3, and for the platform of the handler that is in it."""

    def get_tag(self):
        handler = self.get_finalized_command("build_ext").get_outputs()
        built = all(pathlib.Path(path).is_file() for path in handler)
        return "py3", "none", super().get_tag()[2] if built else "any"


setup(
    cmdclass={"build_ext": BuildHandler, "bdist_wheel": PlatformWheel},
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
