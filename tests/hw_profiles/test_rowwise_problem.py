"""Row-wise problems, tiles and traffic, counted again block by block."""

import itertools

import pytest

import hw_profiles as hw
from hw_profiles.rowwise.streams import STATISTIC_BYTES, element_bytes, row_op
from hw_profiles.rowwise.tiling import row_tiling
from hw_profiles.rowwise.traffic import once_through_bytes

KIB, MIB = 1024, 1024 * 1024
HIDDEN = hw.RmsNormProblem(1024, 4096)
FFN = hw.SwigluProblem(1024, 12288)


def test_rms_norm_of_the_worked_example_in_one_launch():
  traffic = hw.row_traffic(HIDDEN, hw.RowConfig(1, 4096))
  assert traffic.input_read_bytes == traffic.weight_read_bytes == 8 * MIB
  assert traffic.output_write_bytes == 8 * MIB
  assert (traffic.total_bytes, traffic.launches) == (24 * MIB, 1)
  assert traffic.grid == (1024, 1)


def test_rms_norm_of_the_worked_example_in_eight_segments():
  traffic = hw.row_traffic(HIDDEN, hw.RowConfig(1, 512, num_splits=8))
  assert (traffic.grid, traffic.launches) == ((1024, 8), 3)
  # 8192 partial sums written and read, 1024 factors written and read by each segment
  assert traffic.statistic_bytes == 2 * 32 * KIB + 4 * KIB + 32 * KIB
  assert traffic.total_bytes == 32 * MIB + 100 * KIB
  assert round(traffic.total_bytes / MIB, 1) == 32.1


def test_swiglu_chain_of_the_worked_example():
  tile = hw.RowConfig(1, 1024)
  activation = hw.row_traffic(FFN, tile).total_bytes
  quantize = hw.row_traffic(
    hw.QuantizeRowsProblem(1024, 12288, out_dtype="int8"), hw.RowConfig(1, 12288)
  )
  fused = hw.SwigluQuantizeProblem(1024, 12288, out_dtype="int8", row_scales=False)
  assert activation == 72 * MIB
  # the example has one scale for all; a scale a row adds 4 KiB
  assert activation + quantize.total_bytes - quantize.statistic_bytes == 108 * MIB
  assert quantize.statistic_bytes == 4 * KIB
  assert hw.row_traffic(fused, tile).total_bytes == 60 * MIB


PROBLEMS = (
  hw.SwigluProblem(37, 301),
  hw.SwigluQuantizeProblem(37, 301, "float32"),
  hw.SwigluQuantizeProblem(37, 301, row_scales=False),
  hw.QuantizeRowsProblem(5, 1000, "float16", "int8"),
  hw.RmsNormProblem(37, 301),
  hw.RmsNormProblem(37, 301, residual=True),
  hw.RmsNormProblem(37, 301, "float16", "float8_e4m3fn", residual=True),
  hw.RmsNormProblem(1, 7),
)
TILES = tuple(
  hw.RowConfig(rows, columns, num_splits=splits)
  for rows, columns, splits in itertools.product((1, 4, 64), (1, 32, 100, 512), (None, 3, 7))
)


def _count(problem, config):
  """Bytes of every block of every program, one after another."""
  op = row_op(problem)
  rows_of = [
    min(config.block_rows, problem.rows - first)
    for first in range(0, problem.rows, config.block_rows)
  ]
  splits = config.num_splits or 1
  segment = -(-problem.columns // splits) if op.statistics else config.block_cols
  segments = [min(segment, problem.columns - x) for x in range(0, problem.columns, segment)]
  read = weights = written = statistics = 0
  for rows, columns in itertools.product(rows_of, segments):
    again = bool(op.statistics) and (splits > 1 or columns > config.block_cols)
    for first in range(0, columns, config.block_cols):
      block = min(config.block_cols, columns - first)
      read += rows * block * element_bytes(op.inputs)
      written += rows * block * element_bytes((*op.sum_outputs, *op.outputs))
      weights += block * element_bytes(op.weights)
      if again:
        read += rows * block * element_bytes(op.reread)
        weights += block * element_bytes(op.weights) if op.reduce_reads_weights else 0
    if splits > 1:
      statistics += rows * op.statistics * STATISTIC_BYTES * 3
  for rows in rows_of:
    if splits > 1:
      statistics += rows * op.statistics * STATISTIC_BYTES
    else:
      statistics += rows * op.row_outputs * STATISTIC_BYTES
  return read, weights, written, statistics


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_traffic_is_that_of_every_block(problem):
  for config in TILES:
    if config.num_splits and not row_op(problem).statistics:
      continue
    traffic = hw.row_traffic(problem, config)
    counted = _count(problem, config)
    assert counted == (
      traffic.input_read_bytes,
      traffic.weight_read_bytes,
      traffic.output_write_bytes,
      traffic.statistic_bytes,
    ), config
    assert traffic.total_bytes == sum(counted)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_programs_cover_the_matrix_and_no_program_is_idle(problem):
  for config in TILES:
    tiling = row_tiling(problem, config)
    assert tiling.row_blocks * config.block_rows >= problem.rows
    assert (tiling.row_blocks - 1) * config.block_rows < problem.rows
    assert tiling.column_blocks * tiling.segment_columns >= problem.columns
    assert (tiling.column_blocks - 1) * tiling.segment_columns < problem.columns
    assert tiling.steps * config.block_cols >= min(tiling.segment_columns, problem.columns)


def test_forms():
  assert row_tiling(FFN, hw.RowConfig(1, 512)).form == "elementwise"
  assert row_tiling(HIDDEN, hw.RowConfig(1, 4096)).form == "kept"
  assert row_tiling(HIDDEN, hw.RowConfig(1, 4095)).form == "walked_twice"
  assert row_tiling(HIDDEN, hw.RowConfig(1, 4096, num_splits=2)).form == "split"
  fixed = hw.RmsNormProblem(1024, 4096, num_splits=4)
  assert row_tiling(fixed, hw.RowConfig(1, 4096)).column_blocks == 4


def test_a_fused_addition_moves_less_than_two_kernels():
  alone = hw.row_traffic(HIDDEN, hw.RowConfig(1, 4096)).total_bytes
  fused = hw.row_traffic(hw.RmsNormProblem(1024, 4096, residual=True), hw.RowConfig(1, 4096))
  addition = 3 * 8 * MIB
  # the sum is written once and not read back
  assert fused.total_bytes == alone + addition - 8 * MIB


def test_quantised_output_costs_half_the_bytes_and_a_scale_a_row():
  plain = hw.row_traffic(HIDDEN, hw.RowConfig(1, 4096))
  codes = hw.row_traffic(
    hw.RmsNormProblem(1024, 4096, out_dtype="float8_e4m3fn"), hw.RowConfig(1, 4096)
  )
  assert 2 * codes.output_write_bytes == plain.output_write_bytes
  assert codes.statistic_bytes == 4 * 1024
  assert plain.statistic_bytes == 0


@pytest.mark.parametrize(
  "problem",
  [hw.RmsNormProblem(0, 4096), hw.RmsNormProblem(8, 0), hw.SwigluProblem(0, 0)],
  ids=str,
)
def test_nothing_moves_where_there_is_nothing(problem):
  for splits in (None, 1):
    traffic = hw.row_traffic(problem, hw.RowConfig(4, 128, num_splits=splits))
    assert (traffic.total_bytes, traffic.intensity) == (0, 0.0)


@pytest.mark.parametrize(
  ("problem", "expected"),
  [
    (FFN, 72 * MIB),
    (HIDDEN, 16 * MIB + 8 * KIB),
    (hw.RmsNormProblem(1024, 4096, residual=True), 32 * MIB + 8 * KIB),
    (hw.QuantizeRowsProblem(1024, 4096), 12 * MIB + 4 * KIB),
    (hw.TransposeProblem(1024, 4096, "float32", batch=2), 64 * MIB),
    (hw.RmsNormProblem(0, 4096), 0),
  ],
  ids=str,
)
def test_bytes_that_any_program_moves(problem, expected):
  assert once_through_bytes(problem) == expected


def test_a_transpose_moves_each_element_twice():
  traffic = hw.transpose_traffic(
    hw.TransposeProblem(100, 70, "int8", batch=3), hw.RowConfig(32, 32)
  )
  assert traffic.total_bytes == 2 * 3 * 100 * 70
  assert traffic.grid == (4, 3)
  assert traffic.working_set_bytes == 32 * 32


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: hw.SwigluProblem(-1, 4), "SwigluProblem.rows=-1: expected an integer of at least 0"),
    (lambda: hw.SwigluProblem(1, True), "SwigluProblem.columns=True"),
    (lambda: hw.SwigluProblem(1, 4, "int8"), "SwigluProblem.dtype='int8': expected one of"),
    (lambda: hw.SwigluProblem(1, 4, out_dtype="int8"), "SwigluProblem.out_dtype='int8'"),
    (lambda: hw.QuantizeRowsProblem(1, 4, out_dtype=None), "QuantizeRowsProblem.out_dtype=None"),
    (lambda: hw.QuantizeRowsProblem(1, 4, out_dtype="float32"), "expected one of float8_e4m3fn"),
    (lambda: hw.SwigluQuantizeProblem(1, 4, row_scales=1), "row_scales=1: expected True or False"),
    (lambda: hw.RmsNormProblem(1, 4, residual="no"), "residual='no': expected True or False"),
    (lambda: hw.RmsNormProblem(1, 4, num_splits=0), "num_splits=0: expected an integer of at"),
    (lambda: hw.RmsNormProblem(1, 4, warm_l2=None), "warm_l2=None: expected True or False"),
    (lambda: hw.TransposeProblem(1, 4, "bf16"), "dtype='bf16': expected one of"),
    (lambda: hw.TransposeProblem(1, 4, batch=-2), "TransposeProblem.batch=-2"),
    (lambda: hw.TransposeProblem(1, 4, warm_l2=2), "TransposeProblem.warm_l2=2"),
    (lambda: hw.RowConfig(0, 4), "RowConfig.block_rows=0: expected an integer of at least 1"),
    (lambda: hw.RowConfig(1, 4, num_splits=1.5), "RowConfig.num_splits=1.5"),
    (lambda: hw.RowConfig(1, 4, layout="z"), "RowConfig.layout='z': expected one of 'padded'"),
    (lambda: hw.row_traffic(FFN, hw.MatmulConfig(1, 1, 1)), "expected a RowConfig"),
    (lambda: hw.row_traffic("x", hw.RowConfig(1, 1)), "expected the problem of a row-wise op"),
    (lambda: hw.transpose_traffic(FFN, hw.RowConfig(1, 1)), "expected a TransposeProblem"),
  ],
)
def test_wrong_arguments_are_named(make, message):
  with pytest.raises(ValueError) as error:  # noqa: PT011
    make()
  assert message in str(error.value)


def test_a_config_describes_itself_as_the_command_line_takes_it():
  assert hw.RowConfig(4, 1024).describe() == "block_rows=4,block_cols=1024,num_stages=2"
  written = hw.RowConfig(1, 512, 3, num_splits=8, num_warps=4, layout="plain").describe()
  assert written == (
    "block_rows=1,block_cols=512,num_stages=3,num_warps=4,num_splits=8,layout=plain"
  )
