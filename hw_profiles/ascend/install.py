"""Where the compilers of the `[ascend]` extra are, and whether they are the pinned ones."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import pathlib

from hw_profiles.ascend.errors import CompilersNotInstalledError

# what the route was made with; another version prints other text
PINNED = {"ascendnpu-ir": "1.2.0", "triton-ascend": "3.2.0"}
_PIP = 'pip install "pallas-kernels[ascend]" on Python 3.11 installs them'
# Beside the package only where it runs from a checkout.
_CHECKOUT = pathlib.Path(__file__).parents[2] / "requirements" / "ascend.txt"
_ADVICE = _PIP + (
  "; in a checkout `make test-ascend` does, for .venv-ascend/bin/pallas-bench"
  if _CHECKOUT.is_file()
  else ""
)


@dataclasses.dataclass(frozen=True)
class Compilers:
  """Paths of the programs.

  Attributes:
    libtriton: Triton's own passes on its IR, a Python extension.
    adapter: Triton IR to linalg.
    bishengir: The folder of bishengir-compile, -opt and their -a5 forms.
  """

  libtriton: pathlib.Path
  adapter: pathlib.Path
  bishengir: pathlib.Path

  def tool(self, name: str) -> pathlib.Path:
    """The path of one of bishengir's programs."""
    return self.bishengir / name


def _package_folder(package: str) -> pathlib.Path | None:
  spec = importlib.util.find_spec(package)
  if spec is None or not spec.submodule_search_locations:
    return None
  return pathlib.Path(next(iter(spec.submodule_search_locations)))


def _version(distribution: str) -> str | None:
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return None


@functools.cache
def _find() -> tuple[Compilers | None, str]:
  """The compilers and "", or None and why."""
  for distribution, wanted in PINNED.items():
    got = _version(distribution)
    if got is None:
      return None, f"{distribution} is not installed: {_ADVICE}"
    if got != wanted:
      return None, f"{distribution} is version {got}, {wanted} is needed: {_ADVICE}"
  triton, ascend = _package_folder("triton"), _package_folder("ascendnpuir")
  if triton is None or ascend is None:
    return None, f"the packages triton and ascendnpuir are not importable: {_ADVICE}"
  found = Compilers(
    libtriton=triton / "_C" / "libtriton.so",
    adapter=triton / "backends" / "ascend" / "triton-adapter-opt",
    bishengir=ascend / "bin",
  )
  needed = [found.libtriton, found.adapter]
  needed += [
    found.tool(f"bishengir-{name}{generation}")
    for name in ("compile", "opt")
    for generation in ("", "-a5")
  ]
  missing = [path.name for path in needed if not path.is_file()]
  if missing:
    # the official triton has the same package name
    return None, f"{', '.join(missing)} not found, is another triton installed over it? {_ADVICE}"
  return found, ""


def why_missing() -> str:
  """Why the compilers cannot be used; empty where they can."""
  return _find()[1]


def find_compilers() -> Compilers:
  """The compilers.

  Raises:
    CompilersNotInstalledError: they are not there, or not the pinned versions.
  """
  found, why = _find()
  if found is None:
    raise CompilersNotInstalledError(why)
  return found
