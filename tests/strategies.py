"""What hypothesis draws: distributions with zeros and point masses, logit rows, options, tokens."""

import torch
from hypothesis import strategies as st
from torch import Tensor

SMALL_VOCAB = st.integers(1, 8)
# Zeros are common, and so are weights many orders apart.
WEIGHTS = st.sampled_from([0.0, 0.0, 1.0, 1.0, 3.0, 1e-3, 1e-12]) | st.floats(0.0, 1.0)


def normalised(weights: list[float]) -> Tensor:
    """Weights to float64 probabilities."""
    row = torch.tensor(weights, dtype=torch.float64)
    return row / row.sum()


def distributions(vocab_size: int) -> st.SearchStrategy[Tensor]:
    """Any distribution, point masses and uniform ones included."""
    return (
        st.lists(WEIGHTS, min_size=vocab_size, max_size=vocab_size)
        .filter(lambda weights: sum(weights) > 1e-9)
        .map(normalised)
    )


@st.composite
def disjoint_pairs(draw: st.DrawFn, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Two distributions without a common token."""
    border = draw(st.integers(1, vocab_size - 1))
    order = draw(st.permutations(range(vocab_size)))
    weights = [draw(st.floats(0.01, 1.0)) for _ in range(vocab_size)]
    left = [weights[i] if order[i] < border else 0.0 for i in range(vocab_size)]
    right = [0.0 if order[i] < border else weights[i] for i in range(vocab_size)]
    return normalised(left), normalised(right)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Target and draft distribution: any, equal, disjoint, or with a point mass."""
    vocab_size = draw(SMALL_VOCAB)
    kind = draw(st.sampled_from(["any", "equal", "disjoint", "certain"]))
    target = draw(distributions(vocab_size))
    if kind == "equal":
        return target, target.clone()
    if kind == "disjoint" and vocab_size > 1:
        return draw(disjoint_pairs(vocab_size))
    if kind == "certain":
        token = draw(st.integers(0, vocab_size - 1))
        return target, torch.eye(vocab_size, dtype=torch.float64)[token]
    return target, draw(distributions(vocab_size))


def logit_rows(vocab_size: int) -> st.SearchStrategy[Tensor]:
    """Finite logits; ties are common."""
    value = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]) | st.floats(-8.0, 8.0)
    return st.lists(value, min_size=vocab_size, max_size=vocab_size).map(
        lambda row: torch.tensor(row, dtype=torch.float64)
    )


def token_lists(vocab_size: int, max_size: int = 12) -> st.SearchStrategy[list[int]]:
    """Tokens of a prompt or an output."""
    return st.lists(st.integers(0, vocab_size - 1), max_size=max_size)


@st.composite
def warp_options(draw: st.DrawFn, vocab_size: int) -> dict[str, object]:
    """Any combination of the warps, as options of `SamplingParams`.

    Records of the package are built in the test, not in a strategy: the shape checker looks at
    random elements, and hypothesis forbids randomness of its own inside strategies.
    """
    ids = st.integers(0, vocab_size - 1)
    off = draw(st.sets(st.sampled_from(["temperature", "top", "penalties", "mask", "bias"])))
    options: dict[str, object] = {"max_tokens": 16, "min_tokens": draw(st.integers(0, 4))}
    if "temperature" not in off:
        options["temperature"] = draw(st.sampled_from([0.0, 0.3, 0.8, 2.0]))
    if "top" not in off:
        options["top_k"] = draw(st.integers(0, vocab_size + 1))
        options["top_p"] = draw(st.sampled_from([1.0, 0.95, 0.6, 0.2]))
        options["min_p"] = draw(st.sampled_from([0.0, 0.05, 0.4, 1.0]))
    if "penalties" not in off:
        options["repetition_penalty"] = draw(st.sampled_from([1.0, 1.3, 0.7]))
        options["presence_penalty"] = draw(st.sampled_from([0.0, 0.6, -0.6]))
        options["frequency_penalty"] = draw(st.sampled_from([0.0, 0.4, -0.4]))
    if "mask" not in off:
        options["allowed_token_ids"] = draw(st.frozensets(ids, min_size=1))
    if "bias" not in off:
        options["logit_bias"] = draw(st.dictionaries(ids, st.sampled_from([-5.0, 0.5, 5.0])))
    return options
