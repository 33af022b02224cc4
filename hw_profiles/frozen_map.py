"""A dict that cannot change: the mappings inside the frozen dataclasses."""

from typing import Any, NoReturn, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class FrozenMap(dict[_Key, _Value]):
  """A read-only, hashable dict.

  Being a dict, it prints, compares, serialises to JSON and passes through
  `dataclasses.asdict` as one, which `types.MappingProxyType` does not.
  """

  def _refuse(self, *_: Any, **__: Any) -> NoReturn:
    raise TypeError("FrozenMap cannot be changed; build a new one")

  __setitem__ = __delitem__ = __ior__ = _refuse
  clear = pop = popitem = setdefault = update = _refuse

  def __hash__(self) -> int:  # type: ignore[override]
    """The hash of the items, which must be hashable."""
    return hash(frozenset(self.items()))

  def __reduce__(self) -> tuple[Any, ...]:
    """Pickles by rebuilding; the default would set items one by one."""
    return FrozenMap, (dict(self),)

  def __copy__(self) -> "FrozenMap[_Key, _Value]":
    """Itself: it cannot change."""
    return self

  def __deepcopy__(self, memo: Any) -> "FrozenMap[_Key, _Value]":
    """Itself: it cannot change."""
    return self
