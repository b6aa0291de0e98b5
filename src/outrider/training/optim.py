"""Muon for the matrices inside the network, AdamW for everything else.

Embedding rows that a step did not read keep their value and their moments: their AdamW is lazy.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Odd polynomials of degree five whose composition is nearest to 1 from 0.03 to 1. Rounding must not
# carry a singular value above 1, where they explode.
_POLYNOMIALS = (
    (3.5117, -9.8081, 7.1484),
    (2.6627, -8.3494, 7.7997),
    (4.3570, -14.1357, 18.5204),
)
_MARGIN = 1.02
_TINY = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """Learning rates at the peak of the schedule, and the constants of both rules.

    `muon_lr` None leaves matrices to AdamW. With `muon_rows` Muon treats that many rows along a
    matrix's shorter side as a matrix of their own: the cost grows with the square of that side.
    `warmup` is a share of the run.
    """

    lr: float = 2e-3
    muon_lr: float | None = 2e-3
    muon_rows: int | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.95
    weight_decay: float = 0.0
    clip: float = 1.0
    warmup: float = 0.04


def schedule(progress: float, warmup: float) -> float:
    """Factor of the learning rate: a linear rise, then half a cosine to zero."""
    if progress < warmup:
        return progress / warmup
    left = min((progress - warmup) / max(1 - warmup, _TINY), 1.0)
    return 0.5 * (1 + math.cos(math.pi * left))


class Optimizer:
    """Both rules over the named parameters of a network."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], config: OptimConfig) -> None:
        """Split the parameters: two-dimensional ones of `fc` and the layers go to Muon."""
        self.config = config
        self._parameters = dict(parameters)
        self._state: dict[str, dict[str, Tensor]] = {
            name: self._fresh(name, parameter) for name, parameter in self._parameters.items()
        }
        self._steps = 0

    def clip(self) -> float:
        """Scale all gradients to a joint norm of at most `clip`; returns the norm before."""
        gradients = [
            gradient._values() if gradient.is_sparse else gradient
            for parameter in self._parameters.values()
            if (gradient := _coalesced(parameter)) is not None
        ]
        norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
        if norm > self.config.clip:
            torch._foreach_mul_(gradients, self.config.clip / norm)
        return norm

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Apply the gradients with learning rates times `factor`, and drop them."""
        self._steps += 1
        for name, parameter in self._parameters.items():
            gradient = _coalesced(parameter)
            if gradient is None:
                continue
            if self._is_muon(name):
                self._muon(parameter, gradient, self._state[name], factor)
            elif gradient.is_sparse:
                self._lazy_adam(parameter, gradient, self._state[name], factor)
            else:
                self._adam(parameter, gradient, self._state[name], factor)
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Moments and the number of steps."""
        flat = {
            f"{name}/{key}": value
            for name, state in self._state.items()
            for key, value in state.items()
        }
        return {"steps": self._steps, "tensors": flat}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._steps = state["steps"]
        for key, value in state["tensors"].items():
            name, _, part = key.rpartition("/")
            self._state[name][part].copy_(value)

    def _is_muon(self, name: str) -> bool:
        inner = name.startswith(("fc.", "layers.")) and self._parameters[name].ndim > 1
        return self.config.muon_lr is not None and inner

    def _fresh(self, name: str, parameter: nn.Parameter) -> dict[str, Tensor]:
        if self._is_muon(name):
            return {"momentum": torch.zeros_like(parameter)}
        state = {"mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
        if name.endswith("markov_w1.weight"):
            state["updates"] = torch.zeros(len(parameter))
        return state

    def _muon(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], factor: float
    ) -> None:
        config = self.config
        assert config.muon_lr is not None
        momentum = state["momentum"]
        momentum.lerp_(gradient, 1 - config.momentum)
        update = orthogonal_pieces(gradient.lerp(momentum, config.momentum), config.muon_rows)
        # The root mean square of the update is then 0.2 times the rate, as with AdamW.
        rate = config.muon_lr * factor
        weight.mul_(1 - rate * config.weight_decay)
        weight.add_(update, alpha=-rate * 0.2 * math.sqrt(max(weight.shape)))

    def _adam(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], factor: float
    ) -> None:
        torch._fused_adamw_(
            [weight],
            [gradient],
            [state["mean"]],
            [state["square"]],
            [],
            [torch.tensor(float(self._steps))],
            lr=self.config.lr * factor,
            beta1=self.config.betas[0],
            beta2=self.config.betas[1],
            weight_decay=self.config.weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def _lazy_adam(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], factor: float
    ) -> None:
        rows, values = gradient._indices()[0], gradient._values()
        first, second = self.config.betas
        mean = state["mean"][rows].lerp_(values, 1 - first)
        square = state["square"][rows].lerp_(values * values, 1 - second)
        updates = state["updates"][rows] + 1
        state["mean"][rows], state["square"][rows], state["updates"][rows] = mean, square, updates
        # Each row's own number of updates corrects its bias.
        scale = torch.sqrt(1 - second**updates) / (1 - first**updates)
        change = mean / (square.sqrt() + 1e-8) * scale[:, None]
        weight.index_add_(0, rows, change, alpha=-self.config.lr * factor)


def orthogonal_pieces(matrix: Tensor, rows: int | None) -> Tensor:
    """`orthogonal` of each `rows` rows along the shorter side; None is the whole matrix."""
    if rows is None:
        return orthogonal(matrix)
    shorter = int(matrix.shape[0] > matrix.shape[1])
    pieces = [orthogonal(piece) for piece in matrix.split(rows, dim=shorter)]
    return torch.cat(pieces, dim=shorter)


def orthogonal(matrix: Tensor) -> Tensor:
    """Move the singular values of a matrix to about 1, in bfloat16.

    Muon (Jordan et al. 2024). Singular values above 0.03 of the bound end within 0.08 of 1.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    rows = (matrix.T if is_tall else matrix).to(torch.bfloat16)
    rows = rows / (rows.float().norm() + _TINY)
    gram = rows @ rows.T
    # The root of the Gram matrix's norm bounds the largest singular value from above.
    bound = gram.float().norm().sqrt() * _MARGIN + _TINY
    rows, gram = rows / bound, gram / bound**2
    for step, (linear, cubic, quintic) in enumerate(_POLYNOMIALS):
        if step:
            gram = rows @ rows.T
        mixed = (gram @ gram).mul_(quintic).add_(gram, alpha=cubic)
        mixed.diagonal().add_(linear)
        rows = mixed @ rows
    result: Tensor = (rows.T if is_tall else rows).to(matrix.dtype)
    return result


def _coalesced(parameter: nn.Parameter) -> Tensor | None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.coalesce()
    return parameter.grad
