"""Compare the numbers of packed weights with the gguf package's, bit for bit, on random blocks.

Usage: compare_gguf.py TEST_BINARY [GGUF_FILE]. With a file, its quantised tensors are compared too.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "BF16", "F32")
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
OUT_FEATURES = 37
IN_FEATURES = 768


def random_rows(name: str, rng: np.random.Generator) -> np.ndarray:
    """Rows of random blocks whose float16 scales are finite."""
    if name == "F32":
        return rng.standard_normal((OUT_FEATURES, IN_FEATURES)).astype(np.float32).view(np.uint8)
    if name == "BF16":
        numbers = rng.standard_normal((OUT_FEATURES, IN_FEATURES)).astype(np.float32)
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (OUT_FEATURES * IN_FEATURES // inputs, size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = rng.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(OUT_FEATURES, -1)


def packed_numbers(binary: str, name: str, rows: np.ndarray, in_features: int) -> np.ndarray:
    """The float32 numbers that the test binary reads back from its packed layout."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "blocks"
        path.write_bytes(rows.tobytes())
        command = [binary, "--dequantize", name, str(len(rows)), str(in_features), str(path)]
        output = subprocess.run(command, check=True, capture_output=True).stdout
    return np.frombuffer(output, np.float32).reshape(len(rows), in_features)


def differs(binary: str, name: str, rows: np.ndarray, in_features: int) -> bool:
    """Whether any number has other bits than gguf's; prints a line either way."""
    expected = dequantize(rows, gguf.GGMLQuantizationType[name]).astype(np.float32)
    got = packed_numbers(binary, name, rows, in_features)
    unequal = int((expected.view(np.uint32) != got.view(np.uint32)).sum())
    sys.stdout.write(f"{name} [{len(rows)}, {in_features}]: {unequal} numbers differ\n")
    return unequal > 0


def main() -> None:
    """Exit with 1 when any number differs."""
    binary = sys.argv[1]
    rng = np.random.default_rng(0)
    failed = [differs(binary, name, random_rows(name, rng), IN_FEATURES) for name in TYPES]
    for path in sys.argv[2:]:
        seen = set()
        for tensor in gguf.GGUFReader(path).tensors:
            name = tensor.tensor_type.name
            if name in TYPES and len(tensor.shape) == 2 and name not in seen:
                seen.add(name)
                rows = np.asarray(tensor.data)[:64].view(np.uint8)
                failed.append(differs(binary, name, rows, int(tensor.shape[0])))
    raise SystemExit(1 if any(failed) else 0)


if __name__ == "__main__":
    main()
