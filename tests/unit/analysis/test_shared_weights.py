"""Engines over one set of weights, and the forward that shares nothing with them."""

from typing import Any

import pytest
import torch

from outrider.core.request import SamplingParams
from outrider.errors import ConfigError
from outrider.target.torch_target import TorchTarget
from tests.unit.analysis.conftest import MakeLLM

PROMPT = list(b"abcabcabcabc")


def test_a_sibling_shares_weights_but_no_cache(make_llm: MakeLLM) -> None:
    """Catches weights being loaded twice, and one engine's requests showing up in the other."""
    llm = make_llm()
    other = llm.sibling(speculative_config={"method": "ngram"}, max_num_seqs=2)
    assert other.config.speculative is not None
    assert other.config.max_num_seqs == 2
    assert llm.config.speculative is None
    ours, theirs = llm.new_target(16), other.new_target(16)
    assert isinstance(ours, TorchTarget)
    assert isinstance(theirs, TorchTarget)
    assert ours._decoder is theirs._decoder
    assert ours.pool.keys.data_ptr() != theirs.pool.keys.data_ptr()
    params = SamplingParams(temperature=0, max_tokens=24)
    plain, drafted = (each.generate([PROMPT], params)[0].outputs[0] for each in (llm, other))
    assert plain.token_ids == drafted.token_ids
    assert drafted.acceptance.verified > 0
    assert llm.sibling().config.speculative is None


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"device": "cpu"}, {"max_seqs": 1}])
def test_a_sibling_refuses_other_weights(make_llm: MakeLLM, options: dict[str, Any]) -> None:
    """Catches a dtype that is silently ignored."""
    with pytest.raises(ConfigError, match="option of a sibling engine"):
        make_llm().sibling(**options)


def test_scored_tokens_are_those_the_engine_takes(make_llm: MakeLLM) -> None:
    """Catches rows shifted by one, and a prompt longer than a block being cut."""
    llm = make_llm()
    prompt = PROMPT * 3
    output = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=20))[0].outputs[0]
    logits = llm.score_tokens(prompt, output.token_ids)
    assert logits.shape == (len(output.token_ids), llm.spec.vocab_size)
    assert logits.argmax(-1).tolist() == output.token_ids
    last = llm.score_tokens(prompt + output.token_ids[:-1], output.token_ids[-1:])
    torch.testing.assert_close(last[0], logits[-1])
