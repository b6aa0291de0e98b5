"""Block drafters of tiny targets on both runners, with equal numbers."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outrider.core.ids import BlockId, RequestId
from outrider.core.request import Request, SamplingParams, VerifyRule
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.runner import BlockRow, NewContext
from outrider.drafters.block.torch_runner import TorchBlockRunner
from outrider.testing.tiny_block import tiny_block, tiny_block_config
from tests.native.machines import TinyModel, machine

if TYPE_CHECKING:
    from outrider.drafters.block.native_runner import NativeBlockRunner
    from outrider.native.runner import KvType, Machine

NUM_BLOCKS, BLOCK_SIZE = 24, 16


@dataclass(frozen=True)
class TinyBlock:
    """A block drafter for a tiny target, by what differs from `tiny_block_config`."""

    model: TinyModel
    changes: tuple[tuple[str, Any], ...] = ()
    kind: str = "F32"
    seed: int = 4

    @property
    def config(self) -> BlockConfig:
        return tiny_block_config(self.model.spec, **dict(self.changes))

    def checkpoint(self) -> BlockCheckpoint:
        return tiny_block(self.config, self.seed)

    def native(
        self, on: "Machine | None" = None, kv_type: "KvType" = "float32"
    ) -> "NativeBlockRunner":
        from outrider.drafters.block.native_runner import NativeBlockRunner, NativeHost

        on = on or machine()
        target = self.model.native_model(on)
        host = NativeHost(on, target.weights, self.model.spec.stop_token_ids)
        return NativeBlockRunner(
            self.checkpoint(),
            host,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            kind=self.kind,
            kv_type=kv_type,
        )

    def torch(self) -> TorchBlockRunner:
        """On the numbers that the native weights stand for."""
        checkpoint = copy.deepcopy(self.checkpoint())
        for name, weight in checkpoint.network.named_parameters():
            if name.startswith("markov_head") and weight.dim() == 2:
                weight.copy_(weight.to(torch.float16))
        if self.kind != "F32":
            for name, weight in checkpoint.network.named_parameters():
                if weight.dim() == 2 and "layers" in name:
                    weight.copy_(dequantised(weight, self.kind))
            fused = checkpoint.network.fc.weight
            fused.copy_(dequantised(fused, self.kind))
        return TorchBlockRunner(
            checkpoint, self.model.reference(), num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE
        )


def dequantised(weight: Tensor, kind: str) -> Tensor:
    """What a matrix of this kind stands for."""
    from outrider.drafters.block.native_weights import packed

    return torch.from_numpy(packed(weight, kind).dequantised())


def features_of(length: int, config: BlockConfig, seed: int) -> Tensor:
    """Random features, as the taps of a target would give them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        length, config.hidden_size * len(config.target_layer_ids), generator=generator
    )


def context(features: Tensor, first: int, table: Sequence[int]) -> NewContext:
    return NewContext(first, [BlockId(block) for block in table], features)


def row_of(
    tokens: Sequence[int],
    table: Sequence[int],
    num_drafts: int,
    params: SamplingParams,
    rule: VerifyRule = "matching",
    seed: int = 11,
) -> BlockRow:
    """A request whose last prompt token is the anchor."""
    request = Request(RequestId("r"), tuple(tokens), params, seed)
    blocks = [BlockId(block) for block in table]
    return BlockRow(Tokens.of(request), len(tokens) - 1, blocks, num_drafts, rule)
