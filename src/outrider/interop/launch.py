"""How other engines are started with an exported drafter."""

import json
import shlex

from outrider.drafters.block.config import BlockConfig


def vllm_command(target: str, directory: str, config: BlockConfig) -> str:
    """Spell the command that serves `target` with the drafter in `directory`."""
    is_dspark = config.markov_rank > 0 or config.has_confidence_head
    speculative = {
        "method": "dspark" if is_dspark else "dflash",
        "model": directory,
        "num_speculative_tokens": config.num_drafts,
    }
    return (
        f"vllm serve {shlex.quote(target)} --speculative-config "
        f"{shlex.quote(json.dumps(speculative))}"
    )
