"""The built-in model: our decoder against transformers on the same dequantised weights."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.models.attention import FullCausal
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.decoder import Decoder
from outrider.models.hf_config import to_hf_config

QUESTION: Final = [{"role": "user", "content": "What is the capital of France?"}]
TOLERANCE: Final = 5e-4


@pytest.fixture(scope="module")
def checkpoint(default_model: Path) -> Checkpoint:
    return open_checkpoint(default_model)


@pytest.fixture(scope="module")
def decoder(checkpoint: Checkpoint) -> Decoder:
    return checkpoint.load_decoder(torch.float32)


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    assert checkpoint.gguf is not None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**to_hf_config(checkpoint.spec)), attn_implementation="eager"
        )
    model.to_empty(device="cpu")
    weights = {name: checkpoint.gguf.read(name) for name in checkpoint.gguf.shapes()}
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    # Emptied with the rest, and no weight of the file.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


def logits(decoder: Decoder, ids: Tensor) -> Tensor:
    with torch.inference_mode():
        hidden, _ = decoder(ids, torch.arange(len(ids)), FullCausal([len(ids)]))
        return decoder.logits(hidden)


@pytest.mark.model
def test_logits_agree(checkpoint: Checkpoint, decoder: Decoder, reference: Any) -> None:
    """Catches query rows left interleaved, a wrong theta, or a tied head gone astray."""
    ids = torch.tensor(checkpoint.tokenizer.encode_chat(QUESTION))
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
    torch.testing.assert_close(logits(decoder, ids), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.model
def test_it_answers(checkpoint: Checkpoint, decoder: Decoder) -> None:
    """Catches a mistake that both sides of the parity test share, such as a permuted vocabulary."""
    ids = checkpoint.tokenizer.encode_chat(QUESTION)
    start = len(ids)
    while ids[-1] not in checkpoint.spec.stop_token_ids and len(ids) < start + 10:
        ids.append(int(logits(decoder, torch.tensor(ids))[-1].argmax()))
    assert checkpoint.tokenizer.decode(ids[start:]) == "The capital of France is Paris."


@pytest.mark.model
def test_every_weight_is_there_once(default_model: Path) -> None:
    """Catches a tied head that is copied, and weights kept in the float32 they were read in."""
    decoder = open_checkpoint(default_model).load_decoder(torch.bfloat16)
    assert sum(weight.numel() for weight in decoder.parameters()) == 134_515_008
    assert all(weight.dtype == torch.bfloat16 for weight in decoder.parameters())


PROMPTS: Final = (
    "Name three uses of a paper clip.",
    "Write a Python function that adds two numbers.",
    "Why is the sky blue?",
    "Translate 'good morning' into French.",
    "What is 17 times 6? Explain.",
    "Write a haiku about rain.",
    "List the planets of the solar system.",
    "How do I boil an egg?",
    "Write a SQL query that counts the rows of a table.",
    "Tell a story about a lighthouse.",
)


@pytest.mark.model
def test_greedy_text_agrees(default_model: Path, reference: Any) -> None:
    """Catches an engine whose cache, positions or chunking change the text.

    The reference reads prompt and answer in one forward; if every token of the answer is its
    arg-max there, its own greedy text is the same.
    """
    llm = LLM(str(default_model), backend="torch", dtype="float32")
    prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in PROMPTS]
    params = SamplingParams(temperature=0, max_tokens=64)
    for prompt, done in zip(prompts, llm.generate(prompts, params), strict=True):
        answer = done.outputs[0].token_ids
        with torch.inference_mode():
            expected = reference(torch.tensor([[*prompt, *answer]])).logits[0]
        first = len(prompt) - 1
        assert expected[first : first + len(answer)].argmax(-1).tolist() == answer
