"""Server-sent events, whatever pieces they come in."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.serving.load import events
from outrider.serving.load.events import EventReader

TEXT = (
    'data: {"a": 1}\r\n\r\n: keep-alive\n\nevent: x\ndata:zwei\ndata: Zeilen 😀\n\ndata: [DONE]\n\n'
)
FOUND = ['{"a": 1}', "zwei\nZeilen 😀", "[DONE]"]


@given(st.lists(st.integers(0, len(TEXT.encode())), max_size=8))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    """Catches an event lost or doubled where a read ends inside a line, CRLF or character."""
    raw = TEXT.encode()
    edges = [0, *sorted(cuts), len(raw)]
    reader = EventReader()
    pieces = [raw[start:end] for start, end in pairwise(edges)]
    assert [data for piece in pieces for data in reader.feed(piece)] == FOUND


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a server that fills the memory with one line."""
    monkeypatch.setattr(events, "MAX_EVENT", 10)
    reader = EventReader()
    assert list(reader.feed(b"data: 1234")) == []
    with pytest.raises(ValueError, match="longer than 10"):
        list(reader.feed(b"5"))
