"""The errors that say a tile does not fit, and what would."""


class InfeasibleTileError(ValueError):
  """A tile configuration needs more of some on-chip resource than the device has.

  The message names the config field, the value got, the bytes (or registers,
  or threads) needed and available, and the nearest value that fits.
  """


class TileShapeError(InfeasibleTileError):
  """A tile breaks a rule of the matrix unit or of the kernel; no resource is short."""
