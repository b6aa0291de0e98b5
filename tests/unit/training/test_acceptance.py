"""Rounds walked through what a drafter would have said at every position."""

import torch

from outrider.training.acceptance import measure_acceptance
from outrider.training.forward import Trainee
from tests.block_drafters import random_document, random_network, random_teacher, tiny_config


def test_rounds_are_those_of_drafting_one_block_after_another() -> None:
    config = tiny_config()
    trainee = Trainee(random_network(config), random_teacher(config))
    document = random_document(60, 10, 4)
    found = measure_acceptance(trainee, [document])
    rounds, emitted, position = 0, 0, 10
    while position + 1 < 60:
        hits = _accepted(trainee, document, position)
        left = 59 - position
        rounds += 1
        emitted += min(hits + 1, left)
        position += hits + 1
    assert (found.rounds, found.emitted) == (rounds, emitted)
    assert found.emitted == 49


def test_counts_of_documents_add_up() -> None:
    config = tiny_config()
    trainee = Trainee(random_network(config), random_teacher(config))
    documents = [random_document(40, 10, 4), random_document(30, 5, 5)]
    both = measure_acceptance(trainee, documents)
    alone = [measure_acceptance(trainee, [document]) for document in documents]
    assert both == alone[0] + alone[1]
    assert both.offered[0] == both.rounds
    assert all(a <= o for a, o in zip(both.accepted, both.offered, strict=True))


def _accepted(trainee, document, anchor) -> int:
    """Drafts of one block that repeat the document, drafted slot by slot."""
    network, teacher, config = trainee.network, trainee.teacher, trainee.network.config
    context = network.context_keys_values(
        network.fuse(document.features[:anchor, :32]), torch.arange(anchor)
    )
    from outrider.drafters.block.network import Segment

    tokens = torch.full((1, config.block_size), config.mask_token_id)
    tokens[0, 0] = document.tokens[anchor]
    hidden = network(
        teacher.embedding[tokens],
        anchor + torch.arange(config.block_size)[None],
        context,
        [Segment(0, anchor, 0, 1)],
    )[0]
    previous, hits = document.tokens[anchor], 0
    for slot in range(config.block_size):
        if anchor + slot + 1 >= len(document.tokens):
            break
        markov = network.markov_head
        logits = teacher.draft_head @ hidden[slot] + (
            markov.markov_w2.weight @ markov.markov_w1.weight[previous]
        )
        previous = teacher.draft_ids[logits.argmax()]
        if previous != document.tokens[anchor + slot + 1]:
            break
        hits += 1
    return hits
