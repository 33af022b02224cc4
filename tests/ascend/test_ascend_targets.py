"""The compiler's devices and the profiles of the same chips."""

import pytest

from hw_profiles import get_profile, list_profiles
from hw_profiles.ascend import (
  CompilersNotInstalledError,
  find_compilers,
  get_target,
  install,
  list_targets,
  why_missing,
)

_PROFILES = [name for name in list_profiles() if name.startswith("ascend_")]


@pytest.mark.parametrize("name", _PROFILES)
def test_every_profile_has_a_target_of_the_same_sizes(name):
  target, profile = get_target(name), get_profile(name)
  assert target.profile == name
  assert (target.aic_count, target.aiv_count) == (profile.aic_count, profile.aiv_count)
  for space in ("UB", "L1", "L0A", "L0B", "L0C"):
    assert target.capacity_bytes(space) == getattr(profile, f"{space.lower()}_bytes")
  assert target.is_950 == profile.has_l0c_to_ub


def test_aliases_and_targets_name_the_same():
  assert get_target("910b3") is get_target("Ascend910B3") is get_target("ascend_910b3")
  assert get_target(get_target("950pr")).name == "Ascend950PR_9589"


def test_options_differ_by_generation():
  old, new = get_target("ascend_910b3"), get_target("ascend_950pr")
  assert (old.default_multi_buffer, old.default_sub_block) == (True, True)
  assert (new.default_multi_buffer, new.default_sub_block) == (False, False)


def test_all_targets_have_vector_cores_in_pairs():
  assert len(list_targets()) > 50
  for name in list_targets():
    target = get_target(name)
    assert target.aiv_count == 2 * target.aic_count


@pytest.mark.parametrize("name", ["h200_sxm", "Ascend910B9", "", 3])
def test_unknown_targets(name):
  with pytest.raises(ValueError, match="target="):
    get_target(name)


def test_unknown_memory():
  with pytest.raises(ValueError, match="expected one of UB, L1"):
    get_target("ascend_910b3").capacity_bytes("L2")


def test_missing_compilers_are_named_with_what_installs_them():
  why = why_missing()
  if why:
    assert "pip install" in why


@pytest.mark.parametrize(
  ("versions", "expected"),
  [
    ({}, "ascendnpu-ir is not installed"),
    ({"ascendnpu-ir": "1.0.0"}, "ascendnpu-ir is version 1.0.0, 1.2.0 is needed"),
    ({"ascendnpu-ir": "1.2.0"}, "triton-ascend is not installed"),
  ],
)
def test_other_versions_are_named(versions, expected, monkeypatch):
  monkeypatch.setattr(install, "_version", versions.get)
  install._find.cache_clear()
  try:
    assert why_missing().startswith(expected)
    with pytest.raises(CompilersNotInstalledError, match="pip install"):
      find_compilers()
  finally:
    install._find.cache_clear()
