"""What a program of streams, events and buffers is made of, in the order the host issues it."""

import dataclasses
from typing import TypeAlias

from hw_profiles.arguments import collection, not_negative

# the host's own queue; no device stream may have this name
HOST_STREAM = "host"


@dataclasses.dataclass(frozen=True)
class _Accesses:
  """A named piece of work and the buffers it touches."""

  name: str
  duration_us: float = 0.0
  reads: tuple[str, ...] = ()
  writes: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    not_negative(f"{type(self).__name__}({self.name!r}).duration_us", self.duration_us)
    for field in ("reads", "writes"):
      buffers = getattr(self, field)
      collection(f"{type(self).__name__}({self.name!r}).{field}", buffers)
      object.__setattr__(self, field, tuple(buffers))


@dataclasses.dataclass(frozen=True)
class HostWork(_Accesses):
  """The host itself works; what it issues later waits for that.

  Attributes:
    name: Unique in the program.
    duration_us: Time it takes.
    reads: Buffers it reads.
    writes: Buffers it overwrites.
  """


@dataclasses.dataclass(frozen=True)
class HostWait:
  """The host waits for an event before it goes on.

  Attributes:
    event: The event.
  """

  event: str


@dataclasses.dataclass(frozen=True)
class Launch(_Accesses):
  """The host submits a kernel or a copy to a stream and goes on.

  Attributes:
    name: Unique in the program.
    duration_us: Time on the device.
    reads: Buffers it reads.
    writes: Buffers it overwrites.
    stream: Its queue; operations of one stream run in the order submitted.
    resource: The engine it occupies ("compute", "h2d", "d2h"); None: one that is
      never busy.
    submit_us: Host time of the submission.
  """

  stream: str = "default"
  resource: str | None = None
  submit_us: float = 0.0

  def __post_init__(self) -> None:
    super().__post_init__()
    not_negative(f"Launch({self.name!r}).submit_us", self.submit_us)


@dataclasses.dataclass(frozen=True)
class Record:
  """Marks the point a stream has reached; the event is set once all before it has ended.

  Attributes:
    event: The event. It may be recorded again, for a next round.
    stream: The stream.
  """

  event: str
  stream: str


@dataclasses.dataclass(frozen=True)
class Wait:
  """Holds up a stream, not the host, until an event is set.

  Attributes:
    event: The event.
    stream: The stream.
  """

  event: str
  stream: str


@dataclasses.dataclass(frozen=True)
class Collective(_Accesses):
  """One stream's part of an operation that starts once every member has come to it.

  Attributes:
    name: What the parts have in common; once in each stream.
    duration_us: From the last arrival on.
    reads: Buffers it reads.
    writes: Buffers it overwrites.
    stream: The stream of this part.
    members: Streams that take part, this one among them.
  """

  stream: str = "default"
  members: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    collection(f"Collective({self.name!r}).members", self.members)
    super().__post_init__()
    object.__setattr__(self, "members", tuple(self.members))
    if self.stream not in self.members:
      raise ValueError(
        f"Collective({self.name!r}).members={self.members!r}: expected stream {self.stream!r}"
        " among them"
      )


StreamOperation: TypeAlias = HostWork | HostWait | Launch | Record | Wait | Collective
