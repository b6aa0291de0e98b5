"""The memory behind the blocks."""

import torch

from outrider.kvcache.pool import KVPool, bytes_per_token

SHAPE = (2, 3, 4)


def test_writes_go_to_their_layer_and_slots() -> None:
    """Catches keys and values that are swapped, or a layer that overwrites another."""
    pool = KVPool.empty(SHAPE, 5, 2, torch.float64, torch.device("cpu"))
    assert pool.keys.shape == pool.values.shape == (2, 10, 3, 4)
    keys = torch.arange(24, dtype=torch.float64).view(2, 3, 4)
    pool.write(1, torch.tensor([7, 0]), keys, -keys)
    assert torch.equal(pool.keys[1, [7, 0]], keys)
    assert torch.equal(pool.values[1, [7, 0]], -keys)
    assert not pool.keys[0].any()
    assert not pool.values[0].any()
    assert not pool.keys[1, 1:7].any()


def test_bytes_per_token() -> None:
    """Catches a cache planned at half or twice its size."""
    pool = KVPool.empty(SHAPE, 5, 2, torch.bfloat16, torch.device("cpu"))
    num_bytes = pool.keys.nbytes + pool.values.nbytes
    assert bytes_per_token(SHAPE, torch.bfloat16) == num_bytes / 10
