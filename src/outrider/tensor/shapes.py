"""Axis names and the aliases built from them; the only place where they are spelled.

`tokens` is a flattened ragged batch (one row per token of the window); `judged` are the rows of it
that predict a token somebody needs; `vocab` is the target's vocabulary.
"""

from jaxtyping import Float, Int
from torch import Tensor

TokenIds = Int[Tensor, " tokens"]
Positions = Int[Tensor, " tokens"]
Hidden = Float[Tensor, "tokens hidden"]
Queries = Float[Tensor, "tokens heads head_dim"]
KeysValues = Float[Tensor, "tokens kv_heads head_dim"]
Logits = Float[Tensor, "judged vocab"]
LogitRow = Float[Tensor, " vocab"]
Probs = Float[Tensor, " vocab"]
DraftProbs = Float[Tensor, "draft vocab"]
