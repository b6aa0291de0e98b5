"""What only a process of its own shows: pipes that close, Ctrl-C, a real terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.architecture.tree import SRC

REPETITIVE = "one two one two one two one two"
# Steps are slowed down, so that there is a middle of the output to interrupt.
SLOW = (
    "import sys, time\n"
    "from outrider.cli.main import main\n"
    "from outrider.engine.engine import Engine\n"
    "step = Engine.step\n"
    "def slow(self):\n"
    "    time.sleep(0.05)\n"
    "    return step(self)\n"
    "Engine.step = slow\n"
    "sys.exit(main(sys.argv[1:]))\n"
)
# Makes the terminal the one whose Ctrl-C reaches the process.
OWN_TERMINAL = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
STUCK = (
    "import sys, time\n"
    "from outrider.cli.main import main\n"
    "from outrider.engine import llm\n"
    "def build(*parts):\n"
    "    print('!', flush=True)\n"
    "    time.sleep(60)\n"
    "llm.build = build\n"
    "sys.exit(main(sys.argv[1:]))\n"
)
LONG = ["--max-tokens", "400", "--ignore-eos", "--dtype", "float32", "--threads", "1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("cli") / "model"
    return str(write_tiny_checkpoint(directory, tiny_spec(vocab_size=258), seed=5))


def environment() -> dict[str, str]:
    # Step costs that are measured here stay out of the developer's cache.
    cache = str(Path(tempfile.gettempdir()) / "outrider-tests")
    own = {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    return {**os.environ, **own, "OUTRIDER_CACHE": cache}


def start(*argv: str, code: str = SLOW) -> subprocess.Popen[bytes]:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is where a shell runs the tests in the background, and children would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def some_output(process: subprocess.Popen[bytes]) -> bytes:
    """The first bytes of stdout."""
    assert process.stdout is not None
    return os.read(process.stdout.fileno(), 1)


def test_module_and_version() -> None:
    """Catches a package that runs only through its entry point."""
    finished = subprocess.run(
        [sys.executable, "-m", "outrider", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert re.fullmatch(r"outrider \d+\.\d+\.\d+\n", finished.stdout)


def test_a_closed_pipe_ends_quietly(tiny: str) -> None:
    """Catches a traceback, or Python's complaint at exit, when `head` has seen enough."""
    with start("generate", REPETITIVE, "--model", tiny, *LONG) as process:
        some_output(process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(timeout=60) == 141
    assert err == f"loading {tiny} …\n"


def test_ctrl_c_keeps_what_came(tiny: str) -> None:
    """Catches lost text, a traceback, or another exit code than 130."""
    with start("generate", REPETITIVE, "--model", tiny, *LONG) as process:
        first = some_output(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + out).endswith(b"\n")
    assert len(first + out) > 1
    assert b"Traceback" not in err
    assert err.splitlines()[-1] == b"interrupted"


def test_ctrl_c_while_loading(tiny: str) -> None:
    """Catches a traceback out of a library while the model is being loaded."""
    with start("generate", "hi", "--model", tiny, code=STUCK) as process:
        some_output(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert err.endswith(b"interrupted\n")


def on_terminal(argv: list[str], typed: list[tuple[str, bytes]]) -> tuple[int, str]:
    """Run on a terminal of its own; type each text once its cue, a pattern, has been printed."""
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL + SLOW, *argv],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        env=environment(),
    )
    os.close(inside)
    seen, searched, deadline = "", 0, time.monotonic() + 60
    waiting = list(typed)
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            data = os.read(terminal, 4096)
        except OSError:  # The other end is gone.
            break
        seen += data.decode(errors="replace")
        if waiting and re.search(waiting[0][0], seen[searched:], re.S):
            searched = len(seen)
            os.write(terminal, waiting.pop(0)[1])
    os.close(terminal)
    code = process.wait(timeout=60)
    assert not waiting, f"never saw {waiting[0][0]!r} in {seen!r}"
    return code, seen


def test_accepted_tokens_are_green_on_a_terminal(tiny: str) -> None:
    """Catches colours that never reach a terminal, or that come although they were declined."""
    argv = ["generate", REPETITIVE, "--model", tiny, "--max-tokens", "24", "--ignore-eos"]
    code, seen = on_terminal(argv, [])
    assert code == 0
    assert "accepted draft tokens" in seen
    legend = seen.index("accepted draft tokens")
    assert "\x1b[32m" in seen[legend:]
    assert "\r\x1b[Kloading" in seen
    code, seen = on_terminal([*argv, "--no-color"], [])
    assert code == 0
    assert "\x1b[3" not in seen


def test_ctrl_c_stops_an_answer_and_ctrl_d_the_chat(tiny: str) -> None:
    """Catches a Ctrl-C that ends the whole conversation, and a Ctrl-D that does not."""
    code, seen = on_terminal(
        ["chat", "--model", tiny, *LONG],
        [("> ", b"hello\n"), ("hello\r\n.", b"\x03"), ("> ", b"\x04")],
    )
    assert code == 0
    assert "[stopped]" in seen
    assert "Traceback" not in seen


COMMAND = [sys.executable, "-m", "outrider"]


@pytest.mark.parametrize("command", [["generate", "hi"], ["models"], ["--help"], ["--version"]])
def test_a_closed_stdout_is_said(command: list[str]) -> None:
    """Catches a traceback, and results that land in the next file that is opened."""
    finished = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *command],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert finished.returncode == 2
    assert finished.stderr == (
        "outrider: stdout is closed; send it somewhere, for example to a file\n"
    )


def test_a_closed_stderr_leaves_the_results_alone(tiny: str) -> None:
    """Catches progress that lands among the results, and a traceback nobody sees."""
    finished = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *COMMAND, "info", tiny],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert finished.returncode == 0
    assert "llama" in finished.stdout
    assert "Traceback" not in finished.stdout


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.parametrize(
    ("argv", "stdin", "says"),
    [
        ([], b"hello \xff\xfe\n", "stdin"),
        (["--system", b"be \xff"], b"", "--system: character 3"),
    ],
    ids=["stdin", "system"],
)
def test_bytes_that_are_no_text_in_a_chat(
    argv: list[str | bytes], stdin: bytes, says: str, locale: str, tiny: str
) -> None:
    """Catches a traceback out of a conversation."""
    finished = subprocess.run(
        [*COMMAND, "chat", "--model", tiny, "--max-tokens", "2", "--dtype", "float32", *argv],
        input=stdin,
        capture_output=True,
        check=False,
        env={**environment(), "LC_ALL": locale},
    )
    err = finished.stderr.decode()
    assert finished.returncode == 2
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("outrider chat: ")
    assert says in err.splitlines()[-1]
