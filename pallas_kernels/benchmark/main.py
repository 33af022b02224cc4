"""Where `pallas-bench` starts: flags in, one report out, an exit status."""

import sys
from collections.abc import Sequence

from pallas_kernels.benchmark import flags, output, render, tasks
from pallas_kernels.benchmark.errors import UsageError

EXIT_FINE = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: Sequence[str]) -> int:
  """Runs one command line and returns the exit status.

  Args:
    arguments: The command line without the program's name.

  Returns:
    0 fine, 1 a check failed, 2 the flags are wrong, 130 interrupted.
  """
  try:
    options = flags.parse(arguments)
    if options is None:
      sys.stdout.write(flags.help_text())
      return EXIT_FINE
    report = tasks.perform(options)
    output.write(render.render(report, options.format), options.output)
  except UsageError as error:
    print(f"pallas-bench: {error}", file=sys.stderr)
    return EXIT_USAGE
  except KeyboardInterrupt:
    print("pallas-bench: interrupted, nothing written", file=sys.stderr)
    return EXIT_INTERRUPTED
  except BrokenPipeError:
    # The reader of stdout has gone (`| head`): not an error of ours. Point
    # stdout elsewhere, or the interpreter complains when it flushes at exit.
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115
    return EXIT_FINE
  if options.output is not None:
    print(f"pallas-bench: wrote {options.output}", file=sys.stderr)
  return EXIT_CHECK_FAILED if report.failed else EXIT_FINE


def run() -> None:
  """The console script."""
  sys.exit(main(sys.argv[1:]))
