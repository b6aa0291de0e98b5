"""Bad usage: one sentence, the nearest name, exit code 2, and no engine imported for it."""

import pytest

from outrider.cli.main import build_parser, main
from tests.architecture.tree import run_python


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said about a bad command line; checks that it is one line and exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["genrate"], "did you mean 'generate'?"),
        (["generate", "hi", "--max-token", "5"], "did you mean '--max-tokens'?"),
        (["generate", "hi", "--max-token=5"], "did you mean '--max-tokens'?"),
        (["generate", "hi", "there"], "unexpected argument 'there'"),
        (["generate", "hi", "--dtype", "bf16"], "unknown --dtype 'bf16'"),
        (["generate", "hi", "--dtype", "bfloat"], "did you mean 'bfloat16'?"),
        (["generate", "hi", "--verify-rule", "match"], "did you mean 'matching'?"),
        (["generate", "hi", "--max-tokens", "0"], "0 is too small, it must be 1 or more"),
        (["generate", "hi", "--max-tokens", "x"], "'x' is not an integer"),
        (["generate", "hi", "--top-p", "x"], "'x' is not a number"),
        (["generate", "hi", "--logit-bias", "5"], "'5' is not a token id and a bias"),
        (["generate", "hi", "--stop-token-ids", "a"], "'a' is not a list of token ids"),
        (["certify"], "required: --prompts"),
        (["bench"], "required: KIND"),
        (["bench", "rum"], "did you mean 'run'?"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_usage_is_one_sentence(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a usage dump, a traceback, or a suggestion that is missing or far off."""
    assert says in refused(argv, capsys)


def test_option_names_are_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches abbreviations, which change their meaning when an option is added."""
    assert "unknown option '--max'" in refused(["generate", "hi", "--max", "5"], capsys)


@pytest.mark.parametrize(
    "command", ["pull", "models", "info", "generate", "chat", "certify", "bench run"]
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a help text with a stray percent sign, which only fails when it is printed."""
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    assert f"usage: outrider {command}" in capsys.readouterr().out


def test_help_and_bad_usage_load_no_torch() -> None:
    """Catches an import that makes `--help` take seconds."""
    assert not run_python(
        "import sys\n"
        "from outrider.cli.main import main\n"
        "for argv in (['generate', '--help'], ['bench', 'run', '--hlp'], ['models']):\n"
        "    try:\n"
        "        sys.stdout = sys.stderr\n"
        "        main(argv)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "sys.stdout = sys.__stdout__\n"
        "for name in ('torch', 'numpy', 'transformers', 'jinja2'):\n"
        "    if name in sys.modules:\n"
        "        print(name)\n"
    )


def test_defaults_are_shown_in_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a help that hides what happens if an option is left out."""
    with pytest.raises(SystemExit):
        build_parser().parse_args(["generate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "most tokens to generate (default: 256)" in text
    assert "0 takes the most likely token (default: 0.0)" in text
    assert "--json one JSON object, last on stdout --no-color" in text
