"""Builds the launch handler: a C library without Python's ABI, in a wheel for every Python 3.

Everything else about the package is in pyproject.toml.
"""

import pathlib

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HANDLER = "oxijax._core.launch.libhandler"


class BuildHandler(build_ext):
    """Compiles a plain shared library; without a compiler it says so, and the build goes on."""

    def get_ext_filename(self, fullname):  # without the suffix that names a Python version
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext):  # without PyInit_
        return ext.export_symbols

    def run(self):
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
        super().build_extension(ext)


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
            ["oxijax/_core/launch/handler.c"],
            extra_compile_args=["-std=c11", "-O2", "-g0", "-fvisibility=hidden"],
            extra_link_args=["-s"],
            optional=True,
        )
    ],
)
