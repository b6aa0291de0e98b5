"""Engine options: refused where they cannot work, resolved where they were left open."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.core.request import SamplingParams
from outrider.engine.backend import ScoringTarget
from outrider.engine.config import EngineConfig
from outrider.engine.llm import LLM
from outrider.engine.resolve import build, resolve
from outrider.errors import CapacityError, ConfigError, RequestRejected
from outrider.models.spec import RopeSpec
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    rope = RopeSpec(theta=10000.0, max_position=100)
    spec = tiny_spec(vocab_size=64, max_context_len=100, rope=rope)
    return str(write_tiny_checkpoint(path, spec, seed=1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "float31"}, "unknown dtype 'float31'; did you mean 'float32'"),
        ({"verify_rule": "matchin"}, "unknown verify rule 'matchin'; did you mean 'matching'"),
        ({"length_policy": "fixd"}, "unknown length policy 'fixd'; did you mean 'fixed'"),
        ({"block_size": 0}, "block_size is 0, but it must be an integer of 1 or more"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"kv_cache_tokens": -1}, "kv_cache_tokens is -1"),
        ({"max_context_len": 0}, "max_context_len is 0"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "needs one token per step"),
        ({"dtype": torch.float32}, "unknown dtype torch.float32; did you mean 'float32'"),
        ({"dtype": 32}, "unknown dtype 32"),
        ({"backend": None}, "unknown backend None; known: auto"),
        ({"verify_rule": ["matching"]}, "unknown verify rule"),
        ({"block_size": True}, "block_size is True"),
        ({"block_size": None}, "block_size is None"),
        ({"max_num_seqs": 1.5}, "max_num_seqs is 1.5"),
        ({"kv_cache_tokens": 1 << 60}, "kv_cache_tokens is 1152921504606846976, but it must be"),
        ({"device": None}, "device is None, but it must be the name of a torch device"),
        ({"prefix_caching": "no"}, "prefix_caching is 'no', but it must be true or false"),
        ({"seed": "x"}, "seed is 'x', but it must be an integer"),
        ({"length_threshold": "half"}, "length_threshold is 'half'"),
        ({"trace": 3}, "trace is 3, but it must be a path"),
        ({"model": None}, "model is None, but it must be a name or a path"),
    ],
    ids=str,
)
@unchecked()
def test_options_that_cannot_work(options: dict[str, Any], says: str) -> None:
    """Catches an engine that starts and then stalls or divides by zero."""
    with pytest.raises(ConfigError, match=says):
        EngineConfig(**{"model": "m", **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"blocksize": 4}, "unknown engine option 'blocksize'; did you mean 'block_size'"),
        ({"device": "tpu9000"}, "device 'tpu9000' cannot be used here"),
        ({"max_context_len": 101}, "max_context_len is 101, but"),
        ({"speculative_config": {"method": "ngrams"}}, "speculative method 'ngrams'"),
        ({"speculative_config": {"num_speculative_tokens": 2}}, "has no method"),
        ({"speculative_config": {"method": "draft-model"}}, "needs a model"),
    ],
    ids=str,
)
def test_options_this_model_cannot_serve(options: dict[str, Any], says: str, model: str) -> None:
    """Catches a typo that is ignored, and a context the checkpoint was never made for."""
    with pytest.raises(ConfigError, match=says):
        LLM(model, **options)


def test_open_options_are_filled_in(model: str) -> None:
    """Catches a default cache that cannot hold one full context."""
    plan = resolve(EngineConfig(model=model, max_num_seqs=1, max_num_batched_tokens=8))
    assert plan.max_context_len == 100
    assert plan.num_kv_blocks * plan.config.block_size >= 100
    small = resolve(EngineConfig(model=model, kv_cache_tokens=40, block_size=16))
    assert small.num_kv_blocks == 3


def test_a_request_larger_than_the_cache_is_told_so(model: str) -> None:
    """Catches a small cache that passes for a short context, or a request that never ends."""
    llm = LLM(model, dtype="float32", threads=1, kv_cache_tokens=40, block_size=16)
    with pytest.raises(CapacityError, match="raise kv_cache_tokens"):
        llm.generate([[3] * 20], SamplingParams(max_tokens=40))
    (fits,) = llm.generate([[3] * 20], SamplingParams(max_tokens=20, ignore_eos=True))
    assert len(fits.outputs[0].token_ids) == 20


def test_every_option_has_one_default() -> None:
    """Catches a default that is written in a second place, by being mandatory here."""
    mandatory = {
        field.name
        for field in dataclasses.fields(EngineConfig)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    assert mandatory == {"model"}


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return LLM(model, dtype="float32", threads=1, is_checked=True)


def test_prompts_and_params_must_pair_up(llm: LLM) -> None:
    """Catches a zip that drops the prompts without parameters."""
    with pytest.raises(RequestRejected, match="2 prompts came with 1 sampling params"):
        llm.generate(["a", "b"], [SamplingParams()])


def test_one_bad_prompt_stops_the_call_before_anything_runs(llm: LLM) -> None:
    """Catches a refused call that leaves half of its requests in the queue."""
    with pytest.raises(RequestRejected, match="prompt is empty"):
        llm.generate([[3, 4], [], [5]])
    assert not llm.engine.has_work
    with pytest.raises(RequestRejected, match="outside the vocabulary"):
        llm.generate([[3, 4], [64]])
    assert not llm.engine.has_work


def test_forms_of_prompts(llm: LLM) -> None:
    """Catches a list of ids taken for a list of prompts, and the reverse."""
    params = SamplingParams(max_tokens=3, temperature=0)
    tokens = llm.tokenizer.encode("hello")
    (text,) = llm.generate("hello", params)
    (ids,) = llm.generate(tokens, params)
    prompts: list[str | Sequence[int]] = ["hello", tokens]
    both = llm.generate(prompts, params)
    assert text.prompt_token_ids == ids.prompt_token_ids == tokens
    outputs = [text, ids, *both]
    assert len({tuple(each.outputs[0].token_ids) for each in outputs}) == 1
    assert llm.generate([], params) == []


@pytest.mark.parametrize("error", [RuntimeError("can't allocate memory"), MemoryError()])
def test_a_cache_that_memory_cannot_hold(error: Exception, model: str) -> None:
    """Catches an error of the allocator's own, after all weights were read."""

    class Full:
        def new_target(self, num_blocks: int, block_size: int) -> ScoringTarget:
            raise error

        def new_block_runner(self, drafter: Any, num_blocks: int, block_size: int) -> Any:
            raise AssertionError("nothing drafts")

    plan = resolve(EngineConfig(model=model, kv_cache_tokens=1 << 30))
    with pytest.raises(ConfigError, match="1073741824 tokens does not fit into memory; lower kv"):
        build(plan, Full())


def test_auto_weighs_drafts_on_backends_where_that_was_compared(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a default that measures where nothing was compared, or overrules a choice."""

    def resolved(**options: Any) -> str:
        return resolve(EngineConfig(model=model, dtype="float32", **options)).config.length_policy

    assert resolved() == "fixed"
    monkeypatch.setattr("outrider.engine.resolve.WEIGHING_BACKENDS", ("torch",))
    assert resolved() == "throughput"
    assert resolved(length_policy="off") == "off"
