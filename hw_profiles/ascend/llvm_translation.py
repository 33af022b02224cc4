"""A program: the LLVM dialect of MLIR to LLVM IR, by Triton's translator.

    python llvm_translation.py LIBTRITON INPUT OUTPUT

Apart from the rest for the reason `triton_passes` has.
"""

import importlib.util
import pathlib
import sys


def main(library: str, source: str, result: str) -> None:
  """Reads INPUT, writes OUTPUT; the library is loaded without the triton package."""
  spec = importlib.util.spec_from_file_location("libtriton", library)
  assert spec is not None
  assert spec.loader is not None
  triton = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(triton)
  context = triton.ir.context()
  triton.ir.load_dialects(context)
  module = triton.ir.parse_mlir_module(source, context)
  text = str(triton.llvm.to_module(module, triton.llvm.context()))
  pathlib.Path(result).write_text(text, encoding="utf-8")


if __name__ == "__main__":
  main(*sys.argv[1:])
