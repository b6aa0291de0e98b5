"""GGUF files that are cut, bent, or not for us."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.errors import CorruptCheckpoint, ModelError, UnsupportedModel
from outrider.models.checkpoint import open_checkpoint
from outrider.models.gguf import GgufFile
from outrider.models.gguf_header import read_header
from outrider.testing.tiny import tiny_spec, tiny_tensors
from tests.unit.models.gguf_files import write_gguf

VOCABULARY: Final[dict[str, Any]] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["<|bos|>", "<|im_end|>", "ab", *(chr(97 + i) for i in range(13))],
    "tokenizer.ggml.token_type": [3, 3, *[1] * 14],
    "tokenizer.ggml.merges": ["a b"],
}


def write_tiny(folder: Path, **options: Any) -> Path:
    spec = tiny_spec("qwen2", vocab_size=16, num_layers=1)
    return write_gguf(
        folder / "tiny.gguf", spec, tiny_tensors(spec, seed=1), metadata=VOCABULARY, **options
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("gguf"))


def use(path: Path) -> None:
    """Everything a user of the file would do."""
    checkpoint = open_checkpoint(path)
    checkpoint.load_decoder(torch.float32)
    checkpoint.tokenizer.encode("ab")


def test_end_of_turn_tokens_stop_by_name(whole: Path) -> None:
    """Catches chat running on because the file declares another end token than its template."""
    assert open_checkpoint(whole).spec.stop_token_ids == {1}
    assert open_checkpoint(whole).tokenizer.special_ids == {0, 1}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_truncated_file_is_corrupt(share: float, whole: Path, tmp_path: Path) -> None:
    """Catches a partial download taken for a model, or an error of numpy's own."""
    contents = whole.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(contents[: int(len(contents) * share)])
    with pytest.raises(CorruptCheckpoint, match=r"cut\.gguf"):
        use(path)


def test_file_of_something_else_is_corrupt(tmp_path: Path) -> None:
    """Catches a web page saved as a model."""
    path = tmp_path / "page.gguf"
    path.write_text("<!DOCTYPE html>" * 100)
    with pytest.raises(CorruptCheckpoint, match="not a GGUF file"):
        open_checkpoint(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bends=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
    )
)
def test_bent_bytes_give_a_model_or_a_model_error(
    bends: list[tuple[float, int]], whole: Path, tmp_path: Path
) -> None:
    """Catches unchecked lengths, types and offsets: any exception of Python's own, or a hang."""
    contents = bytearray(whole.read_bytes())
    header_len = min(entry.offset for entry in read_header(whole).tensors.values())
    for place, value in bends:
        contents[int(place * header_len)] = value
    path = tmp_path / "bent.gguf"
    path.write_bytes(contents)
    try:
        use(path)
    except ModelError:
        return


def test_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    """Catches a file with one exotic tensor failing without saying which."""
    spec = tiny_spec("qwen2", vocab_size=16, num_layers=1, hidden_size=256)
    path = write_gguf(tmp_path / "t.gguf", spec, tiny_tensors(spec, seed=1), metadata=VOCABULARY)
    contents = path.read_bytes()
    name = b"blk.0.ffn_gate.weight"
    at = contents.index(name) + len(name) + 4 + 2 * 8
    bent = contents[:at] + bytes([GGMLQuantizationType.TQ2_0]) + contents[at + 1 :]
    path.write_bytes(bent)
    file = GgufFile(path)
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_gate\.weight.*TQ2_0"):
        file.read("model.layers.0.mlp.gate_proj.weight")
    with pytest.raises(UnsupportedModel, match="TQ2_0"):
        open_checkpoint(path).load_decoder(torch.float32)
    path.write_bytes(contents[:at] + bytes([250]) + contents[at + 1 :])
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_gate\.weight.*250"):
        open_checkpoint(path)


def test_foreign_tensors_are_named(tmp_path: Path) -> None:
    """Catches a mixture of experts loaded as if it were dense."""
    extra = {"blk.0.ffn_gate_inp.weight": np.zeros((4, 32), np.float32)}
    path = write_tiny(tmp_path, extra=extra)
    with pytest.raises(CorruptCheckpoint, match="ffn_gate_inp"):
        open_checkpoint(path)


def test_wrong_version_is_unsupported(whole: Path, tmp_path: Path) -> None:
    """Catches a big-endian or a future file read as garbage."""
    contents = bytearray(whole.read_bytes())
    contents[4:8] = b"\0\0\0\3"
    path = tmp_path / "big.gguf"
    path.write_bytes(contents)
    with pytest.raises(UnsupportedModel, match="big endian"):
        open_checkpoint(path)


def test_unknown_architecture_says_what_is_known(whole: Path, tmp_path: Path) -> None:
    """Catches a complaint about missing keys where the model is simply another one."""
    path = tmp_path / "other.gguf"
    path.write_bytes(whole.read_bytes().replace(b"qwen2", b"gemma"))
    with pytest.raises(UnsupportedModel, match="llama, qwen2, qwen3"):
        open_checkpoint(path)
