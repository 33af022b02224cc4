"""The one exception that stands for a mistake on the command line."""


class UsageError(Exception):
  """A flag is wrong, or asks for what cannot be done here.

  `main` prints the message without a traceback and exits with status 2, so the
  message names the flag, the text it got, and what would work.
  """
