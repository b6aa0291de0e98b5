"""A GGUF model's dequantised weights stored in another way, for `accuracy.py`.

    python benchmarks/requantise.py MODEL.gguf Q4_0 OUT.gguf
    python benchmarks/requantise.py MODEL.gguf BF16 OUT_DIRECTORY

A quantised type gives a GGUF file with all matrices in it, by the quantisers of the gguf package;
BF16 gives a Hugging Face directory, whose matrices the native backend quantises while it loads.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType, GGUFValueType
from safetensors.torch import save_file

from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.hf_config import to_hf_config

BLOCK = 32
OWN_KEYS = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")


def write_gguf(source: Path, kind: GGMLQuantizationType, target: Path) -> None:
    """Copy the metadata; requantise every matrix."""
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name in OWN_KEYS:
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if rows.ndim == 1 or rows.shape[-1] % BLOCK:
            writer.add_tensor(tensor.name, rows.astype(np.float32))
        else:
            blocks = gguf.quants.quantize(rows.astype(np.float32), kind)
            writer.add_tensor(tensor.name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_directory(checkpoint: Checkpoint, target: Path) -> None:
    """Write config, tokenizer and bfloat16 weights."""
    source: Any = checkpoint.gguf
    target.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, shape in source.shapes().items():
        tensors[name] = torch.empty(shape, dtype=torch.bfloat16)
        source.read_into(name, tensors[name])
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.dumps(to_hf_config(checkpoint.spec))
    (target / "config.json").write_text(config, encoding="utf-8")
    checkpoint.tokenizer.backend.save(str(target / "tokenizer.json"))


def main() -> None:
    """Write one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("kind", choices=("Q4_0", "Q4_1", "Q5_0", "Q8_0", "BF16"))
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    checkpoint = open_checkpoint(args.model)
    if checkpoint.gguf is None:
        raise SystemExit(f"{args.model} is no GGUF file")
    if args.kind == "BF16":
        write_directory(checkpoint, args.target)
    else:
        write_gguf(checkpoint.path, GGMLQuantizationType[args.kind], args.target)


if __name__ == "__main__":
    main()
