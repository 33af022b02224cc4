"""Counts of what a compiled program does."""

import pathlib

import pytest

from hw_profiles.ascend.operations import HivmOperations, count_operations

_DATA = pathlib.Path(__file__).parent / "data"

# calls of a 910's tile library, instructions of a 950's vector functions, as they are printed
_910 = """\
module {
  func.func @kernel_mix_aiv(%arg0: memref<?xbf16>) {
    hivm.hir.wait_flag[<PIPE_MTE2>, <PIPE_V>, <EVENT_ID0>]
    call @load_gm_to_ubuf_1d_bfloat16_t(%0, %1) : (memref<?xbf16>, memref<?xbf16>) -> ()
    call @vcast_bfloat16_t_to_float_1d_with_mode(%1, %2) : (memref<?xbf16>, memref<?xf32>) -> ()
    hivm.hir.pipe_barrier[<PIPE_V>]
    func.call @enablevc_reduce_max_ar_float(%2, %3) : (memref<?xf32>, memref<?xf32>) -> ()
    call @broadcast_scalar_float_to_1d(%4, %5) : (f32, memref<?xf32>) -> ()
    hivm.hir.set_flag[<PIPE_V>, <PIPE_MTE3>, <EVENT_ID0>]
    call @store_ubuf_to_gm_1d_float(%3, %6) : (memref<?xf32>, memref<?xf32>) -> ()
    return
  }
}
"""
_950 = """\
module {
  func.func @kernel_outlined_vf_0(%arg0: memref<64xf32>) {
    %0 = "hivm_regbaseintrins.intr.hivm.pge.b32"(%c0) : (i32) -> vector<256xi1>
    %1 = "hivm_regbaseintrins.intr.hivm.vldsx1.v64f32"(%p, %c0) : (i32, i32) -> vector<64xf32>
    %2 = "hivm_regbaseintrins.intr.hivm.vexp.x"(%1, %0) : (vector<64xf32>) -> vector<64xf32>
    "hivm_regbaseintrins.intr.hivm.vstsx1.v64f32"(%2, %p) : (vector<64xf32>, i32) -> ()
    return
  }
  func.func @kernel_mix_aic(%arg0: memref<64xf32>) {
    call @nd2nz_bfloat16_t(%0, %1) : (memref<?xbf16>, memref<?xbf16>) -> ()
    call @mma_tile_bfloat16_t_to_float_tb(%0, %1) : (memref<?xbf16>, memref<?xbf16>) -> ()
    call @fixpipe_nz2nd_float_to_float_4d_to_2d_ubuf(%0, %1) : (memref<?xf32>) -> ()
    call @kernel_outlined_vf_0(%0) : (memref<64xf32>) -> ()
    return
  }
}
"""


def test_operations_of_a_910_are_calls():
  assert count_operations(_910) == HivmOperations(
    dots=0,
    copies=2,
    vector_operations=3,
    flags_set=0,
    flags_awaited=0,
    pipe_flags=1,
    pipe_barriers=1,
  )


def test_operations_of_a_950_s_vector_functions_are_instructions():
  found = count_operations(_950)
  assert (found.dots, found.copies, found.vector_operations) == (1, 2, 1)


@pytest.mark.parametrize("name", ["aic_910", "mixed_910", "mixed_950"])
def test_products_and_cross_core_flags_of_recorded_programs(name):
  text = (_DATA / f"{name}.mlir").read_text()
  found = count_operations(text)
  assert found.dots == text.count("call @mma_tile_") == 1
  assert found.flags_set == text.count("hivm.hir.sync_block_set")
  assert found.flags_awaited == text.count("hivm.hir.sync_block_wait")
  assert (found.flags_set > 0) == name.startswith("mixed")
