"""What the self-test lets the target answer, unless it is given other prompts."""

from typing import Final

from outrider.analysis.prompts import PromptRow

_TEXTS: Final = {
    "chat": "Name three things to pack for a walk in the mountains, and say why.",
    "code": "Write a Python function that returns the largest number of a list.",
    "math": "A train leaves at 9:40 and arrives at 12:05. How long does it take?",
    "edit": "Correct the spelling: The wether was verry nice, so we went to the beech by buss.",
    "prose": "Tell a short story about an old clock that runs backwards.",
    "list": "List the steps for making a cup of tea, one per line.",
    "letter": "Write a polite letter about a parcel that was left at the wrong door.",
    "facts": "Explain in a few sentences why the sky is blue.",
}
SELF_TEST_PROMPTS: Final = tuple(PromptRow(name, name, text) for name, text in _TEXTS.items())
