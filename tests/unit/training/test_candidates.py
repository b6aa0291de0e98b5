"""Candidates stand for the whole vocabulary: exactly where it matters, on average elsewhere."""

import torch

from outrider.training.candidates import CandidateConfig, choose_candidates

SIZE = 512


def test_plausible_tokens_and_labels_are_always_kept() -> None:
    probabilities = torch.zeros(3, SIZE)
    probabilities[0, 5], probabilities[2, 400] = 0.5, 0.002
    probabilities[1, 7] = 0.0019
    for seed in range(20):
        chosen = choose_candidates(
            probabilities,
            torch.tensor([100]),
            CandidateConfig(threshold=0.002, drawn=61),
            torch.Generator().manual_seed(seed),
        )
        kept = set(chosen.columns[chosen.offset == 0].tolist())
        assert kept == {5, 400, 100}
        assert len(chosen.columns) == len(chosen.columns.unique()) == 64
        assert chosen.place[chosen.columns].tolist() == list(range(64))


def test_sums_over_the_vocabulary_are_right_on_average() -> None:
    """1,000 draws: the mean sum has a standard error of about 0.4 %, and 1.5 % are allowed."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(SIZE, generator=generator)
    probabilities = torch.zeros(1, SIZE)
    probabilities[0, :12] = 0.05
    sums = []
    for _ in range(1000):
        chosen = choose_candidates(
            probabilities, torch.tensor([0]), CandidateConfig(drawn=52), generator
        )
        sums.append((logits[chosen.columns] + chosen.offset).exp().sum())
    mean = torch.stack(sums).mean()
    assert abs(float(mean / logits.exp().sum()) - 1) < 0.015


def test_drawn_tokens_stand_for_the_same_number_on_both_sides() -> None:
    probabilities = torch.full((2, SIZE), 1e-3)
    chosen = choose_candidates(
        probabilities, torch.tensor([3]), CandidateConfig(drawn=63), torch.Generator()
    )
    teacher = chosen.teacher(probabilities)
    torch.testing.assert_close(teacher.sum(-1), torch.full((2,), SIZE * 1e-3))
    torch.testing.assert_close(teacher[0], chosen.offset.exp() * 1e-3)


def test_a_small_vocabulary_is_kept_whole() -> None:
    chosen = choose_candidates(
        torch.full((1, 48), 0.5), torch.tensor([0]), CandidateConfig(), torch.Generator()
    )
    assert chosen.columns.tolist() == list(range(48))
    assert chosen.offset.tolist() == [0.0] * 48
