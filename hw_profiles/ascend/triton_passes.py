"""A program: Triton's own passes on Triton IR, as its front end runs them.

    python triton_passes.py LIBTRITON INPUT OUTPUT

Apart from the rest because libtriton is a large native library: a crash in it
ends this process only, and it never shares one with JAX's copy of MLIR.
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
  passes = triton.ir.pass_manager(context)
  triton.passes.common.add_inliner(passes)
  triton.passes.ttir.add_combine(passes)
  triton.passes.common.add_canonicalizer(passes)
  triton.passes.ttir.add_reorder_broadcast(passes)
  triton.passes.common.add_cse(passes)
  triton.passes.common.add_licm(passes)
  triton.passes.common.add_symbol_dce(passes)
  triton.passes.ttir.add_loop_unroll(passes)
  passes.run(module)
  pathlib.Path(result).write_text(str(module), encoding="utf-8")


if __name__ == "__main__":
  main(*sys.argv[1:])
