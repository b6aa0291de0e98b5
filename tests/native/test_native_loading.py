"""Loading for the native backend: what is refused, and what stays in memory."""

from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from outrider.engine.llm import LLM
from outrider.errors import CorruptCheckpoint
from outrider.models.gguf import GgufFile
from outrider.native import availability
from outrider.testing.tiny import tiny_spec, tiny_tensors, write_tiny_checkpoint
from tests import harness
from tests.native.machines import machine, require_native
from tests.unit.models.gguf_files import write_gguf


def test_a_tensor_nobody_expects_is_refused(tmp_path: Path) -> None:
    """Catches biases that are dropped without a word: another model would run, with exit 0."""
    fault = availability.fault()
    if fault is not None:
        harness.missing(fault)
    write_tiny_checkpoint(tmp_path, tiny_spec("llama", 280), 3)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    rows = tensors["model.layers.0.self_attn.q_proj.weight"].shape[0]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(rows)
    save_file(tensors, weights)
    with pytest.raises(CorruptCheckpoint, match=r"unexpected model\.layers\.0\.self_attn\.q_proj"):
        LLM(str(tmp_path), backend="native")


def resident_kilobytes(path: Path) -> int:
    """Memory of this process that holds pages of a file."""
    sizes, is_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_file = words[-1] == str(path)
        elif is_file and words[0] == "Rss:":
            sizes += int(words[1])
    return sizes


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux for its pages")
def test_the_file_is_not_kept_beside_its_copy(tmp_path: Path) -> None:
    """Catches weights that take their memory twice: in the file's layout and in ours."""
    require_native()
    from outrider.target.native_weights import load_native_tensors

    spec = tiny_spec("llama", 4096)
    tensors = tiny_tensors(spec, 2)
    path = write_gguf(tmp_path / "tiny.gguf", spec, tensors, kind=GGMLQuantizationType.F32)
    source = GgufFile(path)
    embedding = source.read("model.embed_tokens.weight")
    assert resident_kilobytes(path) >= embedding.nbytes // 1024
    load_native_tensors(spec, source, machine(1))
    assert resident_kilobytes(path) == 0
    assert torch.equal(source.read("model.embed_tokens.weight"), embedding)
