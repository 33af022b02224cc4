module @matmul_portable {
  func.func @matmul_portable_infer_task_type_function() -> i8 attributes {hacc.function_kind = #hacc.function_kind<HOST>, hacc.host_func_type = #hacc.host_func_type<infer_task_type_function>} {
    %c20_i8 = arith.constant 20 : i8
    return %c20_i8 : i8
  }
  func.func @matmul_portable(%arg0: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>}, %arg1: memref<?xi8, #hivm.address_space<gm>> {hacc.arg_type = #hacc.arg_type<sync_block_lock>}, %arg2: memref<?xi8, #hivm.address_space<gm>> {hacc.arg_type = #hacc.arg_type<workspace>}, %arg3: memref<?xbf16, #hivm.address_space<gm>> {tt.divisibility = 32 : i32, tt.tensor_kind = 0 : i32}, %arg4: memref<?xbf16, #hivm.address_space<gm>> {tt.divisibility = 32 : i32, tt.tensor_kind = 0 : i32}, %arg5: memref<?xbf16, #hivm.address_space<gm>> {tt.divisibility = 32 : i32, tt.tensor_kind = 1 : i32}, %arg6: i32, %arg7: i32, %arg8: i32) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, func_dyn_memref_args = true, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIC>, hivm.storage_aligned, parallel_mode = "simd"} {
    %c0_i8 = arith.constant 0 : i8
    %c16 = arith.constant 16 : index
    %c32 = arith.constant 32 : index
    %c4_i32 = arith.constant 4 : i32
    %c0_i32 = arith.constant 0 : i32
    %c64 = arith.constant 64 : index
    %c1_i32 = arith.constant 1 : i32
    %c1_i64 = arith.constant 1 : i64
    %c-1_i64 = arith.constant -1 : i64
    %c3072_i64 = arith.constant 3072 : i64
    %c0_i64 = arith.constant 0 : i64
    %c1024_i64 = arith.constant 1024 : i64
    %c4096_i64 = arith.constant 4096 : i64
    %0 = hivm.hir.pointer_cast(%c1024_i64) : memref<4x1x16x16xbf16, #hivm.address_space<cbuf>>
    %1 = hivm.hir.pointer_cast(%c4096_i64) : memref<4x1x16x16xbf16, #hivm.address_space<cbuf>>
    %2 = hivm.hir.pointer_cast(%c0_i64) : memref<1x2x16x16xbf16, #hivm.address_space<cbuf>>
    %3 = hivm.hir.pointer_cast(%c3072_i64) : memref<1x2x16x16xbf16, #hivm.address_space<cbuf>>
    %62 = hivm.hir.pointer_cast(%c0_i64) : memref<4x2x16x16xf32, #hivm.address_space<cc>>
    scf.for %arg9 = %c0_i32 to %c4_i32 step %c1_i32  : i32 {
      %70 = arith.select %69, %1, %0 : memref<4x1x16x16xbf16, #hivm.address_space<cbuf>>
      %75 = arith.select %74, %3, %2 : memref<1x2x16x16xbf16, #hivm.address_space<cbuf>>
      %cast_3 = memref.cast %75 : memref<1x2x16x16xbf16, #hivm.address_space<cbuf>> to memref<?x?x?x?xbf16, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cbuf>>
      %cast_6 = memref.cast %70 : memref<4x1x16x16xbf16, #hivm.address_space<cbuf>> to memref<?x?x?x?xbf16, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cbuf>>
      %cast_7 = memref.cast %75 : memref<1x2x16x16xbf16, #hivm.address_space<cbuf>> to memref<?x?x?x?xbf16, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cbuf>>
      %cast_8 = memref.cast %70 : memref<4x1x16x16xbf16, #hivm.address_space<cbuf>> to memref<?x?x?x?xbf16, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cbuf>>
      %cast_9 = memref.cast %62 : memref<4x2x16x16xf32, #hivm.address_space<cc>> to memref<?x?x?x?xf32, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cc>>
      func.call @mma_tile_bfloat16_t_to_float(%cast_7, %cast_8, %89, %c32, %c16, %c64, %cast_9, %c0_i64, %c1_i64, %84, %81, %77, %c-1_i64, %c-1_i64, %c0_i8) : (memref<?x?x?x?xbf16, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cbuf>>, memref<?x?x?x?xbf16, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cbuf>>, i1, index, index, index, memref<?x?x?x?xf32, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cc>>, i64, i64, i64, i64, i64, i64, i64, i8) -> ()
    } {fixpipe_for_mmad_result_already_inserted = true}
    %cast = memref.cast %62 : memref<4x2x16x16xf32, #hivm.address_space<cc>> to memref<?x?x?x?xf32, strided<[?, ?, ?, ?], offset: ?>, #hivm.address_space<cc>>
    return
  }
}
