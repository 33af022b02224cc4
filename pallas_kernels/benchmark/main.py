"""Where `pallas-bench` starts: flags in, one report out, an exit status."""

# Nothing that takes time is imported here: `main` does it, where an interrupt is caught.
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pallas_kernels.benchmark.errors import UsageError

if TYPE_CHECKING:
  from pallas_kernels.benchmark.rows import Report

EXIT_FINE = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: Sequence[str]) -> int:
  """Runs one command line and returns the exit status.

  Args:
    arguments: The command line without the program's name.

  Returns:
    0 fine, 1 a check failed, 2 the flags are wrong, no kernel runs what they ask,
    or memory or the output has no room for it, 130 interrupted or told to end.
  """
  try:
    return _main(arguments)
  except UsageError as error:
    return _stop(str(error), EXIT_USAGE)
  except MemoryError as error:
    told = " ".join(str(error).split())
    return _stop(f"out of memory{f': {told}' if told else ''}; nothing written", EXIT_USAGE)
  except KeyboardInterrupt as error:
    return _stop(str(error) or "interrupted, nothing written", EXIT_INTERRUPTED)
  except BrokenPipeError:
    # the reader of stdout has gone (`| head`): not an error of ours
    return EXIT_FINE


def _main(arguments: Sequence[str]) -> int:
  from pallas_kernels.benchmark import flags, output, render, results, tasks
  from pallas_kernels.benchmark.figures import draw

  options = flags.parse(arguments)
  if options is None:
    output.write(flags.help_text(), None)
    return EXIT_FINE
  if options.plot is not None:
    draw.check_installed(options.plot)
  report = tasks.perform(options)
  if options.format is None:
    text = render.render_unasked(report, to_file=options.output is not None)
  else:
    text = render.render(report, options.format)
  output.write(text, options.output)
  if options.output is not None:
    _say(f"wrote {options.output}")
  if options.plot is not None:
    _plot(report, options.plot)
  if options.results is not None:
    count = results.update(options.results, report.environment, report.results)
    _say(f"{options.results}: {len(report.results)} of its {count} rows are of this run")
  if report.nothing_ran:
    return _stop("nothing ran: every kernel asked for is refused, its row says why", EXIT_USAGE)
  return EXIT_CHECK_FAILED if report.failed else EXIT_FINE


def _plot(report: "Report", folder: str) -> None:
  """Draws the rows that can be, and says what became of them."""
  from pallas_kernels.benchmark.figures import data, draw

  written = draw.write(data.figures(report.rows), folder)
  if written:
    _say(f"drew {', '.join(written)}")
  else:
    _say(f"--plot={folder}: nothing to draw, no product has a time and nothing is swept")


def _stop(message: str, status: int) -> int:
  _say(message)
  return status


def _say(message: str) -> None:
  """One line on stderr, or nothing where it is closed: print() would take stdout then."""
  if sys.stderr is not None:
    print(f"pallas-bench: {message}", file=sys.stderr)


def _terminated(*_: object) -> None:
  raise KeyboardInterrupt("terminated, nothing written")


def run() -> None:
  """The console script; a request to end is an interrupt, after which nothing is left behind."""
  signal.signal(signal.SIGTERM, _terminated)
  sys.exit(main(sys.argv[1:]))
