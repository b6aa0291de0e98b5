"""Names of the C++ side of cheap drafts; errors of it arrive as ValueError."""

from outrider.native import _native

BlendRule = _native.BlendRule
DraftMaker = _native.DraftMaker
DraftText = _native.DraftText
SuffixAutomaton = _native.SuffixAutomaton
