"""Prompt files into one file in ShareGPT's form, which serving benchmarks read.

    python benchmarks/to_sharegpt.py PROMPTS.jsonl [FOLDER …] --output sharegpt.json [--seed 0]

What the user says becomes the human turns; the answers are left empty, since who plays the
conversations puts the server's own between the turns. Domains are shuffled together by the seed, so
that the first N conversations are a sample of all.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from outrider.analysis.conversations import load_conversations, to_sharegpt


def main() -> None:
    """Convert and say how much there was."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompts", nargs="+", help="JSON Lines, or folders of such files")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    conversations = load_conversations(args.prompts)
    order = np.random.default_rng(args.seed).permutation(len(conversations))
    records = to_sharegpt([conversations[index] for index in order])
    args.output.write_text(json.dumps(records, ensure_ascii=False, indent=1) + "\n", "utf-8")
    print(f"{len(records)} conversations, {sum(len(each.turns) for each in conversations)} turns")


if __name__ == "__main__":
    main()
