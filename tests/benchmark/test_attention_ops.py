"""What the benchmark knows of the attention ops: operands, parts, and how a result is judged."""

import json

import numpy as np
import pytest

from pallas_kernels.benchmark import main, ops, rows
from pallas_kernels.benchmark.ops import attention_peers, attention_sample
from pallas_kernels.benchmark.ops.attention_sample import AttentionSample

SIZES = {
  "flash_attention": {"batch": 2, "seq_q": 40, "seq_kv": 56, "heads": 4, "kv_heads": 2},
  "decode_attention": {"batch": 2, "seq_kv": 56, "heads": 4, "kv_heads": 2},
}


def shape_text(name):
  sizes = {**SIZES[name], "head_dim": 24, "value_dim": 16}
  return "--shape=" + ",".join(f"{key}={value}" for key, value in sizes.items())


def rows_of(capsys, *arguments):
  assert main.main(["--task=run", *arguments, "--format=json"]) == 0
  return json.loads(capsys.readouterr().out)["rows"]


@pytest.fixture
def few_pairs(monkeypatch):
  """Checks compare a sample even where the problem is small."""
  monkeypatch.setattr(attention_sample, "_MOST_PAIRS", 1200)


@pytest.mark.parametrize(
  ("name", "flags"),
  [
    ("flash_attention", ["--tile=block_q=16,block_kv=32"]),
    ("decode_attention", ["--tile=block_kv=16,num_splits=2", "--page_size=16"]),
  ],
)
def test_run_checks_the_interpreted_kernel(name, flags, capsys):
  (row,) = rows_of(capsys, f"--kernel={name}", shape_text(name), *flags)
  assert (row["check"], row["implementation"]) == ("passed", "interpret")
  assert row["checked"] == "all"
  for flag in flags:
    assert flag.split("=")[0] in row["arguments"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
  "flags",
  [
    [],
    ["--backward", "--window=5:9"],
    ["--causal", "--causal_alignment=bottom_right", "--backward"],
  ],
)
@pytest.mark.parametrize("sampled", [False, True])
def test_results_and_gradients_are_checked(flags, dtype, sampled, request, capsys):
  if sampled:
    request.getfixturevalue("few_pairs")
  flags = [*flags, "--causal_alignment=top_left"] if "--causal" not in flags else flags
  (row,) = rows_of(
    capsys,
    "--kernel=flash_attention",
    shape_text("flash_attention"),
    "--implementation=xla",
    f"--dtype={dtype}",
    *flags,
  )
  assert row["check"] == "passed"
  assert any("compared with float64: " in note for note in row["notes"]) is sampled


def test_peers_run_beside_it_and_missing_ones_say_why(capsys):
  arguments = ("--implementation=xla", "--peers=xla,cudnn,fa3,tokamax")
  shape = "--shape=batch=1,seq_q=33,seq_kv=33,heads=4,kv_heads=2,head_dim=16"
  _, xla, cudnn, fa3, tokamax = rows_of(
    capsys, "--kernel=flash_attention", shape, "--causal", *arguments
  )
  assert xla["check"] == "passed"
  assert xla["checked_with"] == "xla on cpu"
  for row, name in ((cudnn, "cudnn"), (fa3, "fa3"), (tokamax, "tokamax")):
    assert row["implementation"] == f"peer:{name}"
    assert row["check"] == "not run"
    assert row["reason"]
  assert "pip install flash-attn3-jax" in fa3["reason"]


def test_decode_peer_reads_all_keys_and_takes_no_pages(capsys):
  flags = ("--kernel=decode_attention", "--implementation=xla", "--peers=xla", "--dtype=float32")
  shape = "--shape=batch=2,seq_kv=37,heads=4,kv_heads=2,head_dim=16"
  assert [row["check"] for row in rows_of(capsys, *flags, shape)] == ["passed"] * 2
  _, paged = rows_of(capsys, *flags, shape, "--page_size=8")
  assert "page table" in paged["reason"]


def test_peer_with_a_mask_of_its_own_alignment_is_not_run():
  mask = attention_peers.PeerMask(causal=True, bottom_right=True)
  call = attention_peers.peer("cudnn", mask)
  q, k = np.ones((1, 2, 1, 8), np.float32), np.ones((1, 4, 1, 8), np.float32)
  with pytest.raises(NotImplementedError, match="2 queries and 4 keys"):
    call(q, k, k)


def _case(name):
  op = ops.get(name)
  shape = op.shape_class(**SIZES[name], head_dim=8)
  options = op.options_class()
  return op, shape, options, op.operands(shape, "float32", options)


@pytest.mark.parametrize("name", list(SIZES))
def test_cut_operands_give_that_part_of_the_result(name):
  op, shape, options, operands = _case(name)
  part = op.sample(shape)
  cut = op.cut(operands, part)
  call = op.call(options, config=None, implementation="xla")
  how = {"ran": "xla", "config": None, "platform": "cpu"}
  for result in (op.cut_result(call(*operands), part), call(*cut)):
    assert op.check(np.asarray(result), cut, options, **how).check == rows.PASSED


@pytest.mark.parametrize("name", list(SIZES))
def test_operands_are_what_the_planner_is_told_of(name):
  op, shape, options, operands = _case(name)
  abstract = op.abstract_operands(shape, "float32", options)
  for drawn, told in zip(operands, abstract, strict=True):
    if told is None:
      assert drawn is None
    else:
      assert (drawn.shape, drawn.dtype) == (told.shape, told.dtype)


@pytest.mark.parametrize("name", list(SIZES))
def test_a_wrong_result_fails_and_says_where(name, few_pairs):
  op, _, options, operands = _case(name)
  result = np.array(op.call(options, config=None, implementation="xla")(*operands))
  sample = op.judged(operands, options)
  (b, g), query, member = sample.units[-1], sample.queries[-1], sample.members[-1]
  where = (b, query, g * sample.group + member, 3)
  result[where] += 1.0
  verdict = op.check(result, operands, options, ran="xla", config=None, platform="cpu")
  assert verdict.check == rows.FAILED
  assert f"out: 1 of {sample.of_queries(result).size} elements" in verdict.notes[0]
  assert str(list(where)) in verdict.notes[0]


def test_wrong_gradient_of_a_key_fails_where_only_some_queries_are_compared(few_pairs):
  op = ops.get("flash_attention")
  shape = op.shape_class(batch=2, seq_q=64, seq_kv=64, heads=4, kv_heads=2, head_dim=8)
  options = op.options_class(backward=True, causal=True)
  operands = op.checked_operands(op.operands(shape, "float32", options), options)
  found = [np.array(x) for x in op.call(options, config=None, implementation="xla")(*operands)]
  how = {"ran": "xla", "config": None, "platform": "cpu"}
  assert op.check(tuple(found), operands, options, **how).check == rows.PASSED
  found[2][1, 40, 1, 5] += 1.0
  verdict = op.check(tuple(found), operands, options, **how)
  assert verdict.check == rows.FAILED
  assert verdict.notes[0].startswith("d_key: ")
  assert "[1, 40, 1, 5]" in verdict.notes[0]


def test_sample_of_a_long_sequence_has_both_ends_and_stays_small():
  op = ops.get("flash_attention")
  shape = op.shape_class(batch=2, seq_q=8192, seq_kv=8192, heads=32, kv_heads=8)
  problem = op.problem(shape, "bfloat16", op.options_class(causal=True))
  sample = AttentionSample.of(mask=problem.mask, batch=2, key_heads=8, group=4)
  assert sample.units[0] == (0, 0)
  assert sample.units[-1] == (1, 7)
  assert (sample.queries[0], sample.queries[-1]) == (0, 8191)
  assert sample.pairs <= attention_sample._MOST_PAIRS
  assert not sample.is_whole
