"""Every error Outrider raises on purpose, in one tree.

    OutriderError
    ├── ConfigError            an option or a combination of options that cannot work
    ├── ModelError             a checkpoint that cannot be used
    │   ├── ModelNotFound      no such name, directory or file
    │   ├── UnsupportedModel   an architecture, a tensor type or a rope setting nobody here knows
    │   ├── CorruptCheckpoint  truncated, missing, misshapen or unreadable tensors and metadata
    │   └── IncompatibleDraft  a drafter that does not fit its target
    ├── TrainingFailed         training cannot go on; what it saved before stays
    ├── OutputFailed           a file that cannot be written: the disk is full, no permission
    └── RequestError           one request that cannot go on; the engine keeps serving the others
        ├── RequestRejected    refused before it ran: empty, too long, an option out of range
        ├── CapacityError      refused because no KV cache of this engine could ever hold it
        └── RequestFailed      failed while running: the target gave NaN or infinite logits

A message names the value, the rule and the way out. `assert` is for invariants that no caller can
break; everything a caller can get wrong ends up here.
"""

import difflib
from collections.abc import Iterable


class OutriderError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(OutriderError, ValueError):
    """An option, or a combination of options, that cannot work."""


class ModelError(OutriderError):
    """A checkpoint that cannot be used."""


class ModelNotFound(ModelError, FileNotFoundError):
    """No model by this name, directory or file."""

    def __str__(self) -> str:
        """Give the sentence alone; `OSError` would format it as an errno."""
        return str(self.args[0]) if self.args else ""


class UnsupportedModel(ModelError):
    """An architecture, a tensor type or a setting that is not implemented."""


class CorruptCheckpoint(ModelError):
    """Truncated, missing, misshapen or unreadable contents."""


class IncompatibleDraft(ModelError):
    """A drafter that does not fit its target."""


class TrainingFailed(OutriderError):
    """Training cannot go on; the last checkpoint stays."""


class OutputFailed(OutriderError, OSError):
    """A file cannot be written; what was written before is whole."""


class RequestError(OutriderError):
    """One request cannot go on; the others are not touched."""


class RequestRejected(RequestError, ValueError):
    """Refused before it ran."""


class CapacityError(RequestError):
    """Refused because the KV cache could never hold it."""


class RequestFailed(RequestError):
    """Failed while running."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Say that `name`, whatever it is, is unknown, what is near it, and what there is."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}; {hint}known: {', '.join(names)}"
