"""Where JAX's private parts are used: two modules, which name the versions they know."""

import pathlib
import re

import pallas_kernels

_PACKAGE = pathlib.Path(pallas_kernels.__file__).parent
_PRIVATE = re.compile(r"^\s*(?:from|import) (?:jax\._src|jaxlib)\b", re.MULTILINE)


def test_they_are_in_two_modules_alone():
  users = {
    str(path.relative_to(_PACKAGE))
    for path in _PACKAGE.rglob("*.py")
    if _PRIVATE.search(path.read_text(encoding="utf-8"))
  }
  assert users == {"compat.py", "lowering/jax_private.py"}
