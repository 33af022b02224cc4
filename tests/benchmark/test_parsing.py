"""Flag texts: what they stand for, and what a wrong one is told."""

import dataclasses

import pytest

from hw_profiles import MatmulConfig
from pallas_kernels.benchmark import parsing
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.ops.matmul import MatmulShape


def read_shapes(text):
  return parsing.shapes(text, MatmulShape, example="m=1024,k=4096,n=12288")


def read_tiles(text):
  return parsing.tiles(text, MatmulConfig, example="block_m=64,block_n=64,block_k=32")


def test_shape_is_read_in_any_order_and_printed_back():
  (shape,) = read_shapes("n=12288, m=1024 ,k=4096")
  assert shape == MatmulShape(m=1024, k=4096, n=12288)
  assert str(shape) == "m=1024,k=4096,n=12288"
  assert read_shapes(str(shape)) == (shape,)


def test_batch_is_part_of_a_shape():
  (shape,) = read_shapes("m=8,k=16,n=32,batch=4")
  assert shape.batch == 4
  assert read_shapes(str(shape)) == (shape,)


def test_sweep_includes_both_ends():
  swept = read_shapes("m=1,k=1024:8192:1024,n=2")
  assert [shape.k for shape in swept] == [1024 * i for i in range(1, 9)]


def test_sweep_stops_before_an_end_that_no_step_meets():
  assert [shape.m for shape in read_shapes("m=1:10:4,k=1,n=1")] == [1, 5, 9]


def test_sweep_of_one():
  assert [shape.m for shape in read_shapes("m=7:7:3,k=1,n=1")] == [7]


def test_two_sweeps_give_every_combination_last_name_fastest():
  swept = read_shapes("m=1:2:1,k=5,n=3:4:1")
  assert [(shape.m, shape.n) for shape in swept] == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_size_zero_is_a_size():
  assert read_shapes("m=0,k=0,n=0") == (MatmulShape(m=0, k=0, n=0),)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("", ["is not name=value", "m=1024,k=4096,n=12288"]),
    ("1024x4096", ["'1024x4096' is not name=value"]),
    ("m=1,k=2", ["n missing"]),
    ("m=1,k=2,n=3,", ["'' is not name=value"]),
    ("m=1,k=2,n=", ["is not name=value"]),
    ("m=1,k=2,n=3,m=4", ["m is given twice"]),
    ("m=1,k=2,n=3,bach=4", ["unknown name 'bach'", "did you mean 'batch'?"]),
    ("m=x,k=2,n=3", ["m=x", "expected an integer or a sweep"]),
    ("m=1.5,k=2,n=3", ["m=1.5", "expected an integer"]),
    ("m=１,k=2,n=3", ["expected an integer"]),
    ("m=-1,k=2,n=3", ["m=-1", "at least 0"]),
    ("m=1:2,k=2,n=3", ["m=1:2", "start:stop:step"]),
    ("m=1:9:0,k=2,n=3", ["the step is 0"]),
    ("m=9:1:1,k=2,n=3", ["stops at 1, before it starts at 9"]),
    ("m=1:1000000:1,k=2,n=3", ["1000000 combinations", "larger step"]),
  ],
)
def test_wrong_shape_is_named_with_its_text(text, words):
  with pytest.raises(UsageError) as error:
    read_shapes(text)
  assert str(error.value).startswith(f"--shape={text}: ")
  for word in words:
    assert word in str(error.value)


def test_tile_reads_every_field_of_the_config():
  text = (
    "block_m=128,block_n=256,block_k=64,num_stages=4,group_m=16,accumulator=shared,"
    "num_warps=8,num_consumer_warpgroups=2,epilogue_block_n=32,cluster_m=2,cluster_n=1,"
    "overlap_epilogue=true"
  )
  assert read_tiles(text) == (
    MatmulConfig(
      128,
      256,
      64,
      4,
      group_m=16,
      accumulator="shared",
      num_warps=8,
      num_consumer_warpgroups=2,
      epilogue_block_n=32,
      cluster_m=2,
      cluster_n=1,
      overlap_epilogue=True,
    ),
  )


@pytest.mark.parametrize(
  "config",
  [
    MatmulConfig(64, 64, 32, 1, accumulator="shared"),
    MatmulConfig(128, 256, 64, 4, group_m=1, num_warps=4),
    MatmulConfig(16, 16, 16),
    MatmulConfig(128, 128, 64, overlap_epilogue=False),
    MatmulConfig(128, 128, 64, overlap_epilogue=True),
  ],
)
def test_what_a_config_describes_is_read_back_as_the_same_config(config):
  assert read_tiles(config.describe()) == (config,)


def test_tile_sweeps():
  swept = read_tiles("block_m=64:128:64,block_n=64,block_k=32,num_stages=1:3:1")
  assert [(tile.block_m, tile.num_stages) for tile in swept] == [
    (64, 1),
    (64, 2),
    (64, 3),
    (128, 1),
    (128, 2),
    (128, 3),
  ]


@pytest.mark.parametrize("name", ["num_warps", "overlap_epilogue"])
def test_none_is_the_value_of_a_field_left_to_its_default(name):
  (tile,) = read_tiles(f"block_m=64,block_n=64,block_k=32,{name}=none")
  assert getattr(tile, name) is None


@pytest.mark.parametrize(
  ("text", "value"), [("true", True), ("False", False), ("TRUE", True), ("none", None)]
)
def test_yes_no_or_none(text, value):
  (tile,) = read_tiles(f"block_m=64,block_n=64,block_k=32,overlap_epilogue={text}")
  assert tile.overlap_epilogue is value


def test_field_of_a_type_that_has_no_reader_is_an_error_of_the_op():
  @dataclasses.dataclass(frozen=True)
  class Config:
    share: complex

  with pytest.raises(TypeError, match="no reader for a config field of type"):
    parsing.tiles("share=0.5", Config, example="share=0.5")


@pytest.mark.parametrize(
  ("text", "value"), [("2", 2.0), ("-0.5", -0.5), (".5", 0.5), ("3.", 3.0), ("1e-3", 1e-3)]
)
def test_a_number_of_a_config(text, value):
  @dataclasses.dataclass(frozen=True)
  class Config:
    share: float

  (read,) = parsing.tiles(f"share={text}", Config, example="share=0.5")
  assert read.share == value


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "٣", "0x1", "1:2:1"])
def test_what_is_no_number_of_a_config(text):
  @dataclasses.dataclass(frozen=True)
  class Config:
    share: float

  with pytest.raises(UsageError, match=r"expected a number, for example 2\.5"):
    parsing.tiles(f"share={text}", Config, example="share=0.5")


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("block_m=64,block_n=64", ["block_k missing"]),
    ("block_m=64,block_n=64,block_k=32,stages=2", ["unknown name 'stages'", "num_stages"]),
    ("block_m=64,block_n=64,block_k=0", ["MatmulConfig.block_k=0", "at least 1"]),
    ("block_m=64,block_n=64,block_k=32,num_warps=four", ["num_warps=four", "or none"]),
    (
      "block_m=64,block_n=64,block_k=32,overlap_epilogue=1",
      ["overlap_epilogue=1", "expected true or false; or none"],
    ),
    (
      "block_m=64,block_n=64,block_k=32,accumulator=register",
      ["accumulator=register", "registers, shared", "did you mean 'registers'?"],
    ),
  ],
)
def test_wrong_tile_is_named_with_its_text(text, words):
  with pytest.raises(UsageError) as error:
    read_tiles(text)
  assert str(error.value).startswith(f"--tile={text}: ")
  for word in words:
    assert word in str(error.value)


def test_choice_drops_repeats_and_names_the_closest():
  assert parsing.choose("peers", ["a", "b", "a"], ["a", "b"]) == ("a", "b")
  with pytest.raises(UsageError, match=r"--dtype=bfloat: expected one of .*'bfloat16'\?"):
    parsing.choose("dtype", ["bfloat"], ["bfloat16", "float16"])
  with pytest.raises(UsageError, match="--dtype: expected at least one of"):
    parsing.choose("dtype", [], ["bfloat16"])
