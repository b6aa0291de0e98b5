"""Whether the compiled half is there, asked without loading it into anything."""

import importlib.util
from functools import cache


@cache
def fault() -> str | None:
    """Say in one sentence why the native runner cannot be used; None where it can."""
    if importlib.util.find_spec("outrider.native._native") is None:
        return (
            "the native runner was not built; install a C++ compiler (GCC or Clang) and reinstall, "
            "or use the torch backend"
        )
    try:
        from outrider.native import _native
    except ImportError as error:
        return f"the native runner cannot be loaded ({error}); reinstall, or use the torch backend"
    return None if _native.available_isas() else "the native runner has no code for this processor"


def instruction_sets() -> list[str]:
    """Instruction sets this machine and this build share, the fastest first; empty if none."""
    if fault() is not None:
        return []
    from outrider.native import _native

    return _native.available_isas()
