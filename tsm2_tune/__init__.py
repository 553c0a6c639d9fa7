"""Code-generating autotuner for tall-and-skinny matrix multiplication on GPUs."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tsm2-tune")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+uninstalled"
