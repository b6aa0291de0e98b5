"""Do a target and a draft model speak the same tokens?"""

import torch

from outrider.errors import IncompatibleDraft
from outrider.models.checkpoint import Checkpoint
from outrider.tensor.shapes import Logits


def require_same_vocabulary(target: Checkpoint, draft: Checkpoint) -> None:
    """Check that every token id means the same in both checkpoints.

    Models may pad their vocabulary differently: ids that only one of them has are fine as long as
    the tokenizers agree on all ids that both have and neither tokenizer has more.

    Raises:
        IncompatibleDraft: Names the first id that differs.
    """
    ours, theirs = target.tokenizer.table(), draft.tokenizer.table()
    for token_id, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if own != other:
            raise IncompatibleDraft(
                f"token {token_id} is {own!r} in the target {target.path} but {other!r} in the "
                f"draft model {draft.path}; use a draft model of the same family"
            )
    if len(ours) != len(theirs):
        raise IncompatibleDraft(
            f"the target {target.path} has {len(ours)} tokens, the draft model {draft.path} has "
            f"{len(theirs)}: token {min(len(ours), len(theirs))} exists in one of them alone; "
            "use a draft model of the same family"
        )


def fit_logits(logits: Logits, vocab_size: int) -> Logits:
    """Cut or pad logits to the target's vocabulary; an id the draft lacks is never proposed."""
    missing = vocab_size - logits.shape[-1]
    if missing <= 0:
        return logits[:, :vocab_size]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
