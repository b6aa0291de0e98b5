"""The tensors of a block drafter: all there, of the right shape, and trained?"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from outrider.analysis.doctor.files import BlockFiles
from outrider.analysis.doctor.findings import Finding
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.network import BlockNetwork

_CONFIDENCE: Final = "confidence_head."
_W1, _W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
FEWEST_COLUMNS: Final = 64
"""Narrower matrices have too few singular values to tell trained ones from random ones."""
SPECTRAL_EDGE: Final = 1.06
_GAUSSIAN, _UNIFORM = 3.0, 1.8
_NEAR: Final = 0.12
_POWER_STEPS: Final = 50
_MATRIX: Final = 2
_MOST_NAMED: Final = 6


def check_tensors(files: BlockFiles, config: BlockConfig | None) -> Iterator[Finding]:
    """Names and shapes, where a configuration was read, and values in any case."""
    own = files.network_tensors
    if config is not None:
        with torch.device("meta"):
            wanted = {n: tuple(t.shape) for n, t in BlockNetwork(config).state_dict().items()}
        yield from _names(wanted, own)
        yield from _shapes(wanted, own)
    for name, tensor in own.items():
        yield from _values(name, tensor)
    yield from _duplicates(own)


def _names(wanted: Mapping[str, tuple[int, ...]], own: Mapping[str, Tensor]) -> Iterator[Finding]:
    missing = [name for name in wanted if name not in own]
    confidence = [name for name in missing if name.startswith(_CONFIDENCE)]
    if confidence:
        yield Finding("confidence-missing", _listed(confidence), _CONFIDENCE.rstrip("."))
    others = [name for name in missing if name not in confidence]
    if others:
        yield Finding("tensor-missing", _listed(others))
    extra = [name for name in own if name not in wanted]
    if extra:
        yield Finding("tensor-unexpected", _listed(extra))


def _shapes(wanted: Mapping[str, tuple[int, ...]], own: Mapping[str, Tensor]) -> Iterator[Finding]:
    wrong = {
        name: tuple(own[name].shape)
        for name, shape in wanted.items()
        if name in own and tuple(own[name].shape) != shape
    }
    if wrong.get(_W1) == wanted.get(_W2) and wrong.get(_W2) == wanted.get(_W1) and _W1 in wrong:
        yield Finding("markov-swapped", f"{_W1} has the shape of {_W2}, and the reverse")
        del wrong[_W1], wrong[_W2]
    for name, shape in wrong.items():
        yield Finding("tensor-shape", f"{shape}, the configuration gives {wanted[name]}", name)


def _values(name: str, tensor: Tensor) -> Iterator[Finding]:
    if not tensor.is_floating_point():
        yield Finding("tensor-dtype", f"numbers of type {tensor.dtype}", name)
        return
    values = tensor.to(torch.float32)
    wrong = int((~torch.isfinite(values)).sum())
    if wrong:
        yield Finding("tensor-not-finite", f"{wrong} of {values.numel()} values", name)
        return
    if name.endswith("norm.weight"):
        if values.numel() > 1 and bool((values == values[0]).all()):
            yield Finding("norm-untrained", f"all weights are {float(values[0]):g}", name)
    elif values.ndim == _MATRIX:
        if not values.any():
            yield Finding("tensor-zero", f"all {values.numel()} values are 0", name)
        elif looks_random(values):
            yield Finding(
                "tensor-random", f"spectrum of random numbers, {tuple(values.shape)}", name
            )


def looks_random(matrix: Tensor) -> bool:
    """Whether a matrix has the spectrum and the tails of independent random numbers.

    The largest singular value of an m × n matrix of independent numbers of deviation s is about
    s(√m + √n) (Marchenko and Pastur 1967); training adds directions that reach beyond. On the
    shipped drafter trained matrices lie at 1.2 to 10 times that. The kurtosis is 3 for Gaussian
    and 1.8 for uniform numbers.
    """
    rows, columns = matrix.shape
    if min(rows, columns) < FEWEST_COLUMNS:
        return False
    centred = matrix - matrix.mean()
    deviation = float(centred.std())
    if deviation == 0:
        return False
    kurtosis = float((centred / deviation).pow(4).mean())
    if min(abs(kurtosis - _GAUSSIAN), abs(kurtosis - _UNIFORM)) > _NEAR:
        return False
    edge = deviation * (math.sqrt(rows) + math.sqrt(columns))
    return _largest_singular_value(matrix) < SPECTRAL_EDGE * edge


def _largest_singular_value(matrix: Tensor) -> float:
    """By power iteration; from below, within a per cent on flat spectra."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    gram = tall.T @ tall
    # No direction is special, and this one is not orthogonal to any by construction.
    vector = 1.0 + torch.arange(len(gram), dtype=gram.dtype) % 7
    for _ in range(_POWER_STEPS):
        vector = gram @ (vector / vector.norm())
    return math.sqrt(float(vector.norm()))


def _duplicates(own: Mapping[str, Tensor]) -> Iterator[Finding]:
    seen: dict[tuple[tuple[int, ...], float, float], str] = {}
    for name, tensor in own.items():
        if tensor.ndim != _MATRIX or not tensor.is_floating_point() or not tensor.any():
            continue
        key = (tuple(tensor.shape), float(tensor.sum()), float(tensor.flatten()[0]))
        twin = seen.setdefault(key, name)
        if twin != name and torch.equal(own[twin], tensor):
            yield Finding("tensor-duplicate", f"the same values as {twin}", name)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
