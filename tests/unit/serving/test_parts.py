"""The small parts of the server: mailboxes, usage, histograms, log-probabilities, timers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.core.ids import RequestId
from outrider.core.outcome import TokenLogprobs
from outrider.core.request import Request, SamplingParams
from outrider.errors import CapacityError, RequestFailed, RequestRejected
from outrider.models.tokenizer import Tokenizer
from outrider.serving.connection import BoundedConnection, bounded
from outrider.serving.failures import Overloaded, api_error_of
from outrider.serving.formats import dumps
from outrider.serving.logprobs import TokenWords, chat_logprobs, completion_logprobs
from outrider.serving.metrics import Histogram
from outrider.serving.settings import ServeSettings
from outrider.serving.ticket import End, Ticket, Update
from outrider.serving.usage import speculation_record, usage_record
from outrider.testing.tiny import BOS, EOS, byte_tokenizer


def request(number: int) -> Request:
    return Request(RequestId(f"r{number}"), (1, 2), SamplingParams(), seed=0)


def test_a_mailbox_gives_everything_once_and_in_order() -> None:
    """Catches an update that is lost between two readings, and a wait that never ends."""

    async def run() -> None:
        ticket = Ticket([request(0), request(1)], arrival=0.0)
        assert await ticket.take(0.01) == []
        updates = [Update(0, None), Update(1, None, End()), Update(0, None, End())]
        ticket.put(updates[0])
        assert await ticket.take(5) == updates[:1]
        asyncio.get_running_loop().call_later(0.01, ticket.put, updates[1])
        assert await ticket.take() == updates[1:2]
        assert ticket.num_open == 1
        ticket.put(updates[2])
        assert await ticket.take(0.0) == updates[2:]
        assert ticket.num_open == 0
        waiting = asyncio.create_task(ticket.take())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        ticket.put(updates[0])
        assert await ticket.take(5) == updates[:1]

    asyncio.run(run())


def test_speculation_is_reported_in_vllms_shape() -> None:
    """Catches a histogram that is shifted by the target's own token, or a wrong denominator."""
    rounds = {(3, 0): 2, (3, 3): 1, (1, 1): 1}
    record = speculation_record([End(accepted_by_length=rounds)], max_draft_len=4)
    assert record == {
        "mean_acceptance_length": 1 + 4 / 4,
        "draft_acceptance_rate": 4 / 10,
        "acceptance_histogram": [2, 1, 0, 1, 0],
        "acceptance_histogram_by_draft_length": {"1": [0, 1], "3": [2, 0, 0, 1]},
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 10,
        "num_spec_tokens": 4,
    }
    nothing = speculation_record([End()], max_draft_len=4)
    assert nothing is not None
    assert nothing["mean_acceptance_length"] is None
    assert speculation_record([End(), End()], max_draft_len=4) is None
    assert speculation_record([End()], max_draft_len=0) is None


def test_usage_counts_a_prompt_once() -> None:
    """Catches prompt tokens that are multiplied by n."""
    ends = [End(num_output=3, num_cached_prompt=16), End(num_output=4, num_cached_prompt=32)]
    two = [*ends, End(num_output=5), End(num_output=6)]
    assert usage_record([20, 7], two) == {
        "prompt_tokens": 27,
        "completion_tokens": 18,
        "total_tokens": 45,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


def test_histograms_count_up_to_their_bounds() -> None:
    """Catches a value on a bound that is counted above it."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == 12.0


def test_tokens_that_are_parts_of_characters_have_bytes() -> None:
    """Catches bytes that are taken from a replacement character."""
    tokenizer = Tokenizer(byte_tokenizer(258), special_tokens={"bos_token": BOS, "eos_token": EOS})
    words = TokenWords(tokenizer)
    ids = tokenizer.encode("é")
    assert [words.of(token) for token in ids] == [("\ufffd", [0xC3]), ("\ufffd", [0xA9])]
    assert words.of(1) == (EOS, list(EOS.encode()))
    entries = [TokenLogprobs(ids[0], -0.5, 1, ((ids[0], -0.5), (ids[1], float("-inf"))))]
    [entry] = chat_logprobs(entries, words)["content"]
    assert entry["top_logprobs"][1]["logprob"] == -9999.0
    a, b = tokenizer.encode("ab")
    record = completion_logprobs(
        [TokenLogprobs(a, -1.0, 1, ()), TokenLogprobs(b, -2.0, 2, ((a, -0.1),))], words, offset=5
    )
    assert record == {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.0, -2.0],
        "top_logprobs": [{"a": -1.0}, {"a": -0.1, "b": -2.0}],
        "text_offset": [5, 6],
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestRejected("no"), 400),
        (CapacityError("no"), 400),
        (Overloaded("no", 3), 429),
        (RequestFailed("no"), 500),
        (LookupError("a secret path"), 500),
    ],
)
def test_errors_have_their_status(error: Exception, status: int) -> None:
    """Catches a client's fault told as the server's, and insides that are told to strangers."""
    found = api_error_of(error)
    assert found.status == status
    assert "secret" not in found.message


class Transport(asyncio.Transport):
    """Remembers what was done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_aborts = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.num_aborts > 0

    def abort(self) -> None:
        self.num_aborts += 1


def connection(settings: ServeSettings) -> tuple[BoundedConnection, Transport]:
    import uvicorn
    from uvicorn.server import ServerState

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    config = uvicorn.Config(app, log_config=None)
    made = bounded(settings)(
        config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
    )
    transport = Transport()
    made.connection_made(transport)
    return made, transport


def test_a_full_buffer_is_given_some_time() -> None:
    """Catches a reader that is dropped for one slow moment, and one that is never dropped."""

    async def run() -> None:
        made, transport = connection(ServeSettings(write_seconds=0.05))
        made.pause_writing()
        made.resume_writing()
        await asyncio.sleep(0.1)
        assert transport.num_aborts == 0
        made.pause_writing()
        await asyncio.sleep(0.2)
        assert transport.num_aborts == 1
        made.connection_lost(ConnectionResetError())

    asyncio.run(run())


def test_the_key_is_not_in_what_settings_say() -> None:
    """Catches a key in a log."""
    assert "horse" not in repr(ServeSettings(api_key="correct horse"))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Catches a traceback where the extra is not installed."""
    import sys

    from outrider.cli.main import main

    for name in [*sys.modules]:
        if name.startswith("outrider.serving") and name != "outrider.serving.settings":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "--model", str(tmp_path)]) == 2


def test_json_is_one_line_to_everyone() -> None:
    """Catches an event that a client cuts in two where Python sees the end of a line."""
    text = "".join(map(chr, range(0x3000))) + "é😀"
    assert len(dumps(text).splitlines()) == 1
    assert json.loads(dumps(text)) == text
    assert "é😀" in dumps(text), "other characters stay as they are"
