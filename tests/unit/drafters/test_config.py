"""The speculative config refuses what JSON can bring."""

from typing import Any

import pytest

from outrider.drafters.config import SpeculativeConfig
from outrider.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": 3}, "method in the speculative config is 3, not a string"),
        ({"method": "ngram", "num_speculative_tokens": "5"}, "is '5', not an integer"),
        ({"method": "ngram", "num_speculative_tokens": True}, "is True, not an integer"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": "high"}, "not a number"),
        ({"method": "ngram-table", "min_survival": 1.5}, "it is a probability"),
        ({"method": "ngram-table", "min_survival": None}, "not a number"),
        ({"method": "combined", "network": "suffix"}, "unknown network to combine 'suffix'"),
        ({"method": "combined", "network_cost": -0.1}, "a share of a round, 0 or more"),
        ({"method": "combined", "network_cost": float("nan")}, "a share of a round, 0 or more"),
        ({"method": "combined", "ngram_table": 3}, "not a string"),
        ({"method": "draft-model", "model": 1}, "not a string"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "must be 1 or more"),
        ({"method": "ngram", "prompt_lookup_min": 5}, "1 <= min <= max"),
        ({"method": "ngram", "num_speculativ_tokens": 4}, "'num_speculative_tokens'"),
        ({}, "no method"),
    ],
)
def test_wrong_options_get_one_sentence(options: dict[str, Any], sentence: str) -> None:
    """A TypeError from a comparison deep inside, instead of the option's name."""
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig.from_options(options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vllms_spelling_is_understood() -> None:
    """`draft_model` refused although vLLM users type it."""
    assert SpeculativeConfig(method="draft_model", model="x").method == "draft-model"
