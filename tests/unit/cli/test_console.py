"""Colours and moving lines where a person looks, plain text everywhere else."""

import io
import os
import signal
import sys

import pytest

from outrider.cli.console import ACCEPTED_COLOUR, RESET, Console, stoppable


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stdout. Not a fixture: pytest puts its own stdout back before the test begins."""
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return out


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches escape sequences that are never closed."""
    terminal = as_terminal(monkeypatch)
    console = Console()
    console.write("a", colour=ACCEPTED_COLOUR)
    console.write("b")
    assert terminal.getvalue() == f"{ACCEPTED_COLOUR}a{RESET}b"


def test_no_color_and_dumb_terminals_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches NO_COLOR being ignored, or an empty one being obeyed."""
    as_terminal(monkeypatch)
    assert not Console(no_color=True).has_colour
    monkeypatch.setenv("NO_COLOR", "")
    assert Console().has_colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Console().has_colour
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not Console().has_colour


def test_files_get_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches colours in a pipe, and text that is changed on its way into a file."""
    console = Console()
    console.write("a\x1b[2J", colour=ACCEPTED_COLOUR)
    assert capsys.readouterr().out == "a\x1b[2J"


def test_a_model_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an escape sequence in generated text that clears the screen."""
    terminal = as_terminal(monkeypatch)
    Console().write("\x1b[2J")
    assert "\x1b" not in terminal.getvalue()


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches output that strict parsers refuse."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        Console().print_json({"a": float("nan")})


def test_progress_of_a_pipe_is_sparse(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a log file with a line per prompt; the last line always comes."""
    console = Console()
    for done in range(1, 101):
        console.progress("prompts", done, 100, 0.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "100/100 prompts, 0 s left"
    assert len(lines) <= 3


def test_a_moving_line_is_wiped_before_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches text glued to the end of a progress line."""
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    console = Console()
    with console.working("loading"):
        pass
    console.say("done")
    assert err.getvalue() == "\r\x1b[Kloading …\r\x1b[Kdone\n"


def test_the_first_ctrl_c_asks_and_the_second_insists() -> None:
    """Catches a step torn in two by the first, or a user who cannot get out."""
    before = signal.getsignal(signal.SIGINT)
    with stoppable() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
