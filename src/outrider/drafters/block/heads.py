"""The small heads on a block drafter's slots: what the previous token adds, and how sure it is.

A Markov head gives slot k the logits `w2 · m_k` on top of the network's, where the features `m_k`
come from the token before and, depending on the type, from the slot and from earlier tokens.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from outrider.drafters.block.config import BlockConfig, MarkovType
from outrider.models.layers import Linear

Slots = Float[Tensor, "*slots hidden"]
MarkovRows = Float[Tensor, "*slots rank"]


class MarkovHead(nn.Module):
    """Logits from the previous token through a bottleneck of `rank` features.

    `markov_w1` is indexed by the target's token ids, `markov_w2` by draft vocabulary. DSpark
    (arXiv 2607.05147), section 3; three types:

    - vanilla: m = e, the row of the previous token;
    - gated: m = sigmoid(gate_proj[h ; e]) * e;
    - rnn: (g, c, o) = joint_proj[s ; e ; h]; s' = sigmoid(g) s + (1 − sigmoid(g)) tanh(c);
      m = tanh(o).
    """

    def __init__(self, config: BlockConfig) -> None:
        """Create the head with uninitialised weights."""
        super().__init__()
        rank, hidden = config.markov_rank, config.hidden_size
        self.markov_type: MarkovType = config.markov_type
        self.markov_w1 = nn.Embedding(
            config.vocab_size, rank, _weight=torch.empty(config.vocab_size, rank)
        )
        self.markov_w2 = Linear(rank, config.head_size, bias=False)
        if self.markov_type == "gated":
            self.gate_proj = Linear(hidden + rank, rank)
        if self.markov_type == "rnn":
            self.joint_proj = Linear(2 * rank + hidden, 3 * rank)

    def rows_of(self, tokens: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens rank"]:
        """Rows of `markov_w1`; their gradient is sparse if the embedding says so."""
        return functional.embedding(tokens, self.markov_w1.weight, sparse=self.markov_w1.sparse)

    def features(
        self, hidden: Float[Tensor, "blocks slots hidden"], previous: Int[Tensor, "blocks slots"]
    ) -> Float[Tensor, "blocks slots rank"]:
        """Markov features of whole blocks, given the token before every slot."""
        rows = self.rows_of(previous).to(hidden.dtype)
        if self.markov_type != "rnn":
            return self._memoryless(hidden, rows)
        state = self.initial_state(hidden[:, 0])
        steps = []
        for slot in range(hidden.shape[1]):
            features, state = self._recurrent(hidden[:, slot], rows[:, slot], state)
            steps.append(features)
        return torch.stack(steps, 1)

    def step(
        self,
        hidden: Float[Tensor, "blocks hidden"],
        previous: Int[Tensor, " blocks"],
        state: Float[Tensor, "blocks rank"],
    ) -> tuple[Float[Tensor, "blocks rank"], Float[Tensor, "blocks rank"]]:
        """Markov features of one slot per block, and the state after it."""
        rows = self.rows_of(previous).to(hidden.dtype)
        if self.markov_type == "rnn":
            return self._recurrent(hidden, rows, state)
        return self._memoryless(hidden, rows), state

    def initial_state(self, hidden: Float[Tensor, "blocks hidden"]) -> Float[Tensor, "blocks rank"]:
        """The state before the first slot; only the recurrent type reads it."""
        return hidden.new_zeros(hidden.shape[0], self.markov_w1.weight.shape[1])

    def _memoryless(self, hidden: Slots, rows: MarkovRows) -> MarkovRows:
        if self.markov_type == "vanilla":
            return rows
        gate = apply_linear(self.gate_proj, torch.cat((hidden, rows), -1))
        return torch.sigmoid(gate) * rows

    def _recurrent(
        self, hidden: Slots, rows: MarkovRows, state: MarkovRows
    ) -> tuple[MarkovRows, MarkovRows]:
        joint = apply_linear(self.joint_proj, torch.cat((state, rows, hidden), -1))
        gate, candidate, output = joint.chunk(3, -1)
        keep = torch.sigmoid(gate)
        return torch.tanh(output), keep * state + (1 - keep) * torch.tanh(candidate)


class ConfidenceHead(nn.Module):
    """Logit of the chance that a slot's token is accepted, given that those before it were."""

    def __init__(self, config: BlockConfig) -> None:
        """Create the head with uninitialised weights."""
        super().__init__()
        self.with_markov = config.confidence_with_markov and config.markov_rank > 0
        inputs = config.hidden_size + (config.markov_rank if self.with_markov else 0)
        self.proj = Linear(inputs, 1)

    def forward(self, hidden: Slots, previous_rows: MarkovRows | None) -> Float[Tensor, "*slots"]:
        """Logits in float32; `previous_rows` are the `markov_w1` rows of the tokens before."""
        inputs = hidden
        if self.with_markov:
            assert previous_rows is not None
            inputs = torch.cat((hidden, previous_rows.to(hidden.dtype)), -1)
        wide = torch.promote_types(inputs.dtype, torch.float32)
        return apply_linear(self.proj, inputs.to(wide)).squeeze(-1)


def apply_linear(
    layer: nn.Linear, inputs: Float[Tensor, "*rows size"]
) -> Float[Tensor, "*rows out"]:
    """Apply `layer` in the dtype of its inputs, whatever dtype its weights are kept in."""
    bias: Tensor | None = layer.bias
    return functional.linear(
        inputs,
        layer.weight.to(inputs.dtype),
        None if bias is None else bias.to(inputs.dtype),
    )
