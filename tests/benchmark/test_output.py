"""A file is the earlier one or the whole new one, whatever happens."""

import os
import pathlib

import pytest

from pallas_kernels.benchmark import output
from pallas_kernels.benchmark.errors import UsageError


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
