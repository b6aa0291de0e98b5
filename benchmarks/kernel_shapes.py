"""Write the shapes of a GGUF file's linear layers for kernel_rows: one line per parallel region."""

import sys

from gguf import GGUFReader

REGIONS = (
    ("attn_q", "attn_k", "attn_v"),
    ("attn_output",),
    ("ffn_gate", "ffn_up"),
    ("ffn_down",),
)


def main() -> None:
    """Print the regions of the file named by the first argument, in the order of a forward."""
    tensors = {tensor.name: tensor for tensor in GGUFReader(sys.argv[1]).tensors}
    names = []
    layer = 0
    while f"blk.{layer}.attn_q.weight" in tensors:
        names += [[f"blk.{layer}.{part}.weight" for part in region] for region in REGIONS]
        layer += 1
    names.append(["output.weight" if "output.weight" in tensors else "token_embd.weight"])
    for region in names:
        shapes = []
        for name in region:
            tensor = tensors[name]
            shapes.append(f"{tensor.tensor_type.name} {tensor.shape[1]} {tensor.shape[0]}")
        sys.stdout.write(" ".join(shapes) + "\n")


if __name__ == "__main__":
    main()
