"""A file is the earlier one or the whole new one, whatever happens."""

import io
import os
import pathlib
import stat
import subprocess
import sys

import pytest

from pallas_kernels.benchmark import main, output
from pallas_kernels.benchmark.errors import UsageError

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_writes_a_new_file_with_the_usual_permissions(tmp_path):
  path = tmp_path / "rows.json"
  output.write("text\n", str(path))
  (tmp_path / "plain").write_text("")
  assert path.read_text() == "text\n"
  assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
  assert sorted(p.name for p in tmp_path.iterdir()) == ["plain", "rows.json"]


def test_replaces_a_file_and_keeps_its_permissions(tmp_path):
  path = tmp_path / "rows.json"
  path.write_text("earlier")
  path.chmod(0o640)
  output.write("later", str(path))
  assert path.read_text() == "later"
  assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failure_leaves_the_earlier_file_and_nothing_else(tmp_path, monkeypatch, call):
  path = tmp_path / "rows.json"
  path.write_text("earlier")

  def full(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(os, call, full)
  with pytest.raises(UsageError, match=r"--output=.*rows\.json: No space left on device"):
    output.write("later", str(path))
  assert path.read_text() == "earlier"
  assert [p.name for p in tmp_path.iterdir()] == ["rows.json"]


def test_symbolic_link_stays_one(tmp_path):
  (tmp_path / "target").write_text("earlier")
  (tmp_path / "link").symlink_to("target")
  output.write("later", str(tmp_path / "link"))
  assert (tmp_path / "link").is_symlink()
  assert (tmp_path / "target").read_text() == "later"


def test_no_path_is_stdout(capsys):
  output.write("text\n", None)
  assert capsys.readouterr().out == "text\n"


def test_path_that_cannot_be_written_is_refused_beforehand(tmp_path):
  with pytest.raises(UsageError, match="is a folder"):
    output.check_path(str(tmp_path))
  with pytest.raises(UsageError, match=r"folder .*missing.* does not exist"):
    output.check_path(str(tmp_path / "missing" / "rows.json"))
  output.check_path(str(pathlib.Path(tmp_path) / "rows.json"))


@pytest.fixture
def fifo(tmp_path):
  path = tmp_path / "pipe"
  os.mkfifo(path)
  yield path
  assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize("refuse", [output.check_path, lambda path: output.write("text", path)])
def test_fifo_is_refused_and_stays_one(fifo, refuse):
  with pytest.raises(UsageError, match=r"--output=.*pipe: is a FIFO, expected a regular file"):
    refuse(str(fifo))
  assert [p.name for p in fifo.parent.iterdir()] == ["pipe"]


def test_link_to_a_fifo_is_refused_and_stays_one(fifo):
  link = fifo.parent / "link"
  link.symlink_to("pipe")
  for refuse in (output.check_path, lambda path: output.write("text", path)):
    with pytest.raises(UsageError, match="is a FIFO"):
      refuse(str(link))
  assert link.is_symlink()


def test_fifo_that_appears_while_the_file_is_written_is_not_replaced(tmp_path, monkeypatch):
  path, sync = tmp_path / "rows.json", os.fsync

  def sync_late(handle):
    sync(handle)
    os.mkfifo(path)

  monkeypatch.setattr(os, "fsync", sync_late)
  with pytest.raises(UsageError, match="is a FIFO"):
    output.write("text", str(path))
  assert stat.S_ISFIFO(path.stat().st_mode)
  assert [p.name for p in tmp_path.iterdir()] == ["rows.json"]


@pytest.mark.parametrize(
  ("path", "words"),
  [("", "--output=: expected a file"), ("-", "--output=-: stdout is the default")],
)
def test_what_is_no_file_name_is_told_what_to_do(path, words):
  with pytest.raises(UsageError, match=words):
    output.check_path(path)


def test_name_of_250_characters_is_written(tmp_path):
  path = tmp_path / ("r" * 250)
  output.check_path(str(path))
  output.write("text", str(path))
  assert path.read_text() == "text"


def test_names_that_the_system_refuses_are_told_in_one_line(tmp_path):
  (tmp_path / "circle").symlink_to("circle")
  for name in ("r" * 300, "circle"):
    for refuse in (output.check_path, lambda path: output.write("text", path)):
      with pytest.raises(UsageError, match="--output="):
        refuse(str(tmp_path / name))
  assert [p.name for p in tmp_path.iterdir()] == ["circle"]


class Full(io.StringIO):
  def flush(self):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("arguments", [["--help"], ["--task=plan", "--profile=h100_sxm"]])
def test_full_stdout_is_one_line_and_status_2(monkeypatch, capsys, arguments):
  monkeypatch.setattr(sys, "stdout", Full())
  assert main.main(arguments) == 2
  assert capsys.readouterr().err == "pallas-bench: stdout: No space left on device\n"


@pytest.mark.parametrize("redirection", [">&-", "1<&0 0<&-"])
def test_stdout_that_cannot_be_written_is_one_line_and_status_2(tmp_path, redirection):
  # closed; open for reading alone
  (tmp_path / "file").write_text("")
  result = subprocess.run(
    f'"{sys.executable}" -m pallas_kernels.benchmark --help <file {redirection}',
    shell=True,
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    stderr=subprocess.PIPE,
    text=True,
    check=False,
  )
  assert result.returncode == 2
  assert result.stderr.startswith("pallas-bench: stdout")
  assert result.stderr.count("\n") == 1
