"""A tiny target and a block drafter trained on what it says, so that a planted fault shows."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.analysis.prompts import PromptRow
from outrider.core.request import SamplingParams
from outrider.drafters.block.config import BlockConfig
from outrider.engine.llm import LLM
from outrider.models.checkpoint import open_checkpoint
from outrider.models.fingerprint import target_hash
from outrider.models.spec import ModelSpec
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from outrider.training.candidates import CandidateConfig
from outrider.training.checkpoint import BEST, Provenance
from outrider.training.dataset import FeaturedDocument
from outrider.training.forward import Trainee
from outrider.training.loop import LoopConfig, Trainer
from outrider.training.optim import OptimConfig
from outrider.training.sampler import SamplerConfig
from outrider.training.setup import new_network
from outrider.training.teacher import load_teacher
from tests.block_drafters import write_shards
from tests.unchecked import unchecked

TAPS = (1, 3)
NUM_LAYERS = 6
VOCAB = 64
LENGTH = 32
STEPS = 150
TEXTS = ("the rain", "a stone", "one two", "no more", "so be it", "in time")
PROMPTS = tuple(PromptRow(f"p{i}", "test", text) for i, text in enumerate(TEXTS))


def pair_spec(**changes: Any) -> ModelSpec:
    return tiny_spec(vocab_size=VOCAB, num_layers=NUM_LAYERS, **changes)


def pair_config(spec: ModelSpec, found_hash: str) -> BlockConfig:
    fields: dict[str, Any] = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": spec.vocab_size,
        "mask_token_id": 0,
        "target_layer_ids": TAPS,
        "num_target_layers": spec.num_layers,
        "block_size": 4,
        "markov_rank": 16,
        "has_confidence_head": True,
        "rms_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "max_context_len": spec.max_context_len,
        "target_hash": found_hash,
    }
    return BlockConfig(**fields)


def documents_of(model: Path, prompts: Sequence[Sequence[int]]) -> list[FeaturedDocument]:
    """The model's greedy answers with the outputs of the tapped and of the last layer."""
    llm = LLM(
        str(model),
        backend="torch",
        dtype="float32",
        prefix_caching=False,
        feature_taps=(*TAPS, NUM_LAYERS - 1),
    )
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    outputs = llm.generate([list(prompt) for prompt in prompts], params)
    documents = []
    for prompt, output in zip(prompts, outputs, strict=True):
        own = output.outputs[0]
        features = own.features
        assert features is not None
        tokens = torch.tensor([*prompt, *own.token_ids][: len(features)])
        mask = torch.arange(len(tokens)) >= len(prompt)
        documents.append(FeaturedDocument(tokens, mask, features.float()))
    return documents


def write_pair(directory: Path, seed: int = 5) -> tuple[Path, Path]:
    """A target, and a drafter that was trained on its answers to the prompts; their folders.

    Every answer is there three times, so that those held out for the record are known texts.
    """
    model = write_tiny_checkpoint(directory / "model", pair_spec(), seed)
    checkpoint = open_checkpoint(model)
    tokenizer = checkpoint.tokenizer
    prompts = [tokenizer.encode(row.text) for row in PROMPTS for _ in range(3)]
    write_shards(
        directory / "data",
        documents_of(model, prompts),
        per_shard=100,
        tap_layers=[*TAPS, NUM_LAYERS - 1],
        hidden_size=checkpoint.spec.hidden_size,
        vocab_size=VOCAB,
    )
    found = target_hash(checkpoint)
    config = pair_config(checkpoint.spec, found)
    teacher = load_teacher(checkpoint, None, torch.float32)
    loop = LoopConfig(
        steps=STEPS,
        eval_minutes=1e9,
        save_minutes=1e9,
        sampler=SamplerConfig(blocks_per_step=24, held_out_share=0.3),
        optim=OptimConfig(lr=0.02, muon_lr=0.02),
        candidates=CandidateConfig(drawn=8),
    )
    provenance = Provenance("tiny", found, "data", "", "dspark", {}, None)
    trainee = Trainee(new_network(config, teacher, seed=0), teacher)
    with unchecked():
        trainer = Trainer(trainee, directory / "data", directory / "run", loop, provenance)
        trainer.run(lambda _: None)
    return model, directory / "run" / BEST


class Drafter:
    """A copy of a drafter's folder to plant faults in."""

    def __init__(self, source: Path, folder: Path) -> None:
        shutil.copytree(source, folder)
        self.folder = folder

    def set(self, **fields: Any) -> None:
        """Replace settings; None removes one."""
        path = self.folder / "config.json"
        config = json.loads(path.read_text("utf-8")) | fields
        kept = {name: value for name, value in config.items() if value is not None}
        path.write_text(json.dumps(kept), "utf-8")

    def tensors(self) -> dict[str, Tensor]:
        """All tensors."""
        return load_file(self.folder / "model.safetensors")

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Put these in their place."""
        whole = {name: values.contiguous().clone() for name, values in tensors.items()}
        save_file(whole, self.folder / "model.safetensors")

    def change(self, name: str, change: Callable[[Tensor], Tensor | None]) -> None:
        """Map one tensor; None removes it."""
        tensors = self.tensors()
        changed = change(tensors.pop(name))
        self.write(tensors if changed is None else tensors | {name: changed})

    def drop_record(self) -> None:
        """Leave what training measured out."""
        (self.folder / "provenance.json").unlink()


def reduce_vocabulary(drafter: Drafter, ids: Tensor) -> None:
    """Let the drafter draft these tokens alone; the rest of it stays as trained."""
    drafter.set(draft_vocab_size=len(ids))
    drafter.change("markov_head.markov_w2.weight", lambda rows: rows[ids])
    marked = torch.zeros(VOCAB, dtype=torch.bool)
    marked[ids] = True
    drafter.write(drafter.tensors() | {"d2t": ids - torch.arange(len(ids)), "t2d": marked})
