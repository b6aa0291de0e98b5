"""Writes traces, a line per step, so that a run that is killed leaves what it did."""

from outrider.core.paths import expanded
from outrider.core.trace import TraceHeader
from outrider.engine.report import StepReport
from outrider.errors import ConfigError


class TraceWriter:
    """Called with every report of an engine."""

    def __init__(self, path: str, header: TraceHeader) -> None:
        """Start a new file; an old one is replaced.

        Raises:
            ConfigError: The file cannot be written.
        """
        self._path = expanded(path)
        try:
            self._path.write_text(header.to_line() + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the trace cannot be written to {path} ({error})") from error

    def __call__(self, report: StepReport) -> None:
        """Write one step."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(report.trace().to_line() + "\n")
