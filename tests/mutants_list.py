"""The named mutants: one-line breakages of the source that the named tests must notice."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One breakage: in `file`, `old` becomes `new`, and each of `tests` must go red."""

    name: str
    file: str
    """Path below `src/`, for example `outrider/verify/accept.py`."""
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """pytest arguments below the repository root: files, or `file::test`."""


ACCEPT: Final = "tests/property/test_accept.py"
ROUND: Final = "tests/property/test_rejection_round.py"
LAW: Final = f"{ROUND}::test_a_round_has_exactly_the_law_of_the_formula"
JOINT: Final = "tests/e2e/test_lossless_rejection.py::test_joint_law_of_four_tokens"
OPTIONS: Final = "tests/e2e/test_lossless_options.py"
GRAMMAR: Final = "tests/e2e/test_lossless_grammar.py"
STOPS: Final = "tests/e2e/test_lossless_stops.py"
MATCHING: Final = "tests/e2e/test_lossless_matching.py"
BAD_INPUT: Final = "tests/unit/engine/test_bad_input.py"
RECOVERY: Final = "tests/unit/engine/test_recovery.py"
KVCACHE: Final = "tests/property/test_kvcache.py"
LAYOUT: Final = "tests/property/test_layout.py"
BLOCK: Final = "tests/e2e/test_lossless_block.py::test_the_distributions_of_a_draft_are_its_own"
BLOCK_PARITY: Final = "tests/parity/test_block_drafter.py"
BLOCK_LABELS: Final = (
    "tests/unit/training/test_block_data.py::test_labels_teachers_and_previous_tokens_of_every_slot"
)

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="target and draft swapped in the theorem",
        file="outrider/verify/accept.py",
        old="target / torch.where(drawn, draft, 1.0), 1.0)",
        new="draft / torch.where(target > 0, target, 1e-300), 1.0)",
        tests=(f"{ACCEPT}::test_emitted_is_the_target",),
    ),
    Mutant(
        name="residual not renormalised",
        file="outrider/verify/accept.py",
        old="excess / torch.where(mass > 0, mass, 1.0)",
        new="excess",
        tests=(f"{ACCEPT}::test_emitted_is_the_target", f"{ACCEPT}::test_edges_of_the_rule"),
    ),
    Mutant(
        name="target and draft swapped in the round",
        file="outrider/verify/rejection.py",
        old="chance = float(target[token]) /",
        new="chance = float(proposed[token]) /",
        tests=(LAW, JOINT),
    ),
    Mutant(
        name="residual skipped",
        file="outrider/verify/rejection.py",
        old="draw(residual(target, proposed), add_number)",
        new="draw(target, add_number)",
        tests=(LAW, f"{JOINT}[drawn]", f"{JOINT}[likeliest]"),
    ),
    Mutant(
        name="bonus drawn from the draft",
        file="outrider/verify/rejection.py",
        old="draw(target, add_number), added_origin",
        new="draw(target if draft.probs is None else draft.probs[-1], add_number), added_origin",
        tests=(f"{LAW}[probs-0]", f"{JOINT}[drawn]"),
    ),
    Mutant(
        name="noise of a round used again",
        file="outrider/verify/rejection.py",
        old="sequence.request.seed, sequence.num_rounds",
        new="sequence.request.seed, 0",
        tests=(f"{ROUND}::test_noise_is_keyed_by_round_and_slot", f"{JOINT}[drawn-ragged]"),
    ),
    Mutant(
        name="drafts and their acceptance share noise",
        file="outrider/sampling/noise.py",
        old="DRAFT = 2",
        new="DRAFT = 3",
        tests=(
            "tests/property/test_noise.py::test_purposes_never_share_a_number",
            f"{JOINT}[drawn]",
        ),
    ),
    Mutant(
        name="an impossible token accepted by noise of zero",
        file="outrider/verify/rejection.py",
        old="slot) < chance:",
        new="slot) <= chance:",
        tests=(f"{ROUND}::test_a_token_that_cannot_come_is_never_accepted",),
    ),
    Mutant(
        name="matching noise not moved along the window",
        file="outrider/verify/matching.py",
        old="sequence.num_output + accepted,",
        new="sequence.num_output,",
        tests=(
            f"{OPTIONS}::test_matching",
            f"{MATCHING}::test_any_drafter_and_batch_size",
            "tests/unit/verify/test_matching.py",
        ),
    ),
    Mutant(
        name="rows drawn at once with the noise of the first position",
        file="outrider/native/sampling.py",
        old="range(run.position, run.position + run.num_rows)",
        new="[run.position] * run.num_rows",
        tests=("tests/native/test_native_verifier.py",),
    ),
    Mutant(
        name="noise keyed by index instead of token",
        file="outrider/sampling/noise.py",
        old="state = tokens.to(torch.int64) *",
        new="state = torch.arange(tokens.numel()).view(tokens.shape) *",
        tests=(
            "tests/property/test_noise.py::test_a_token_has_one_value_whatever_else_is_asked",
            f"{OPTIONS}::test_plain",
        ),
    ),
    Mutant(
        name="drafter not coupled to the target",
        file="outrider/sampling/draw.py",
        old="position = sequence.num_output + slot",
        new="position = sequence.num_output + slot + 1",
        tests=("tests/e2e/test_lossless_rejection.py::test_rejection_is_what_it_costs[matching]",),
    ),
    Mutant(
        name="draft model keeps rejected tokens",
        file="outrider/drafters/draft_model.py",
        old=" and own[kept] == self.written[kept]",
        new="",
        tests=("tests/e2e/test_lossless_draft_model.py",),
    ),
    Mutant(
        name="penalties keep rejected tokens",
        file="outrider/verify/verifier.py",
        old="*self._draft[:index])",
        new="*self._draft)",
        tests=(f"{OPTIONS}::test_matching", f"{OPTIONS}::test_rejection"),
    ),
    Mutant(
        name="penalties overlook the drafted prefix",
        file="outrider/verify/verifier.py",
        old="(*self._output, *self._draft[:index])",
        new="self._output",
        tests=(f"{OPTIONS}::test_matching", f"{OPTIONS}::test_rejection"),
    ),
    Mutant(
        name="only the first position warped",
        file="outrider/verify/verifier.py",
        old="return warp(logits, self._params, context)",
        new="return warp(logits, self._params, context) if index == 0 else logits",
        tests=(f"{OPTIONS}::test_matching", f"{OPTIONS}::test_rejection"),
    ),
    Mutant(
        name="penalties before the mask and the bias",
        file="outrider/sampling/warp.py",
        old="    row = _mask(row, params, context)\n    row = _penalise(row, params, context)\n",
        new="    row = _penalise(row, params, context)\n    row = _mask(row, params, context)\n",
        tests=("tests/property/test_warp.py::test_all_warps_together",),
    ),
    Mutant(
        name="rejected drafts keep a block",
        file="outrider/kvcache/view.py",
        old="keep = self._blocks_for(0)",
        new="keep = self._blocks_for(1)",
        tests=(f"{KVCACHE}::TestPagedCache",),
    ),
    Mutant(
        name="prefix hash ignores what was before",
        file="outrider/kvcache/view.py",
        old='before = self._hashes[start // size - 1] if start else b""',
        new='before = b""',
        tests=(
            f"{KVCACHE}::test_equal_blocks_after_different_prefixes_are_different",
            f"{KVCACHE}::TestPagedCache",
        ),
    ),
    Mutant(
        name="a block published before it is full",
        file="outrider/kvcache/view.py",
        old="range(len(self._hashes), kv_len // size)",
        new="range(len(self._hashes), (kv_len + 1) // size)",
        tests=(f"{KVCACHE}::TestPagedCache", f"{MATCHING}::test_a_conversation_goes_on"),
    ),
    Mutant(
        name="anchor believed to be cached",
        file="outrider/engine/commit.py",
        old="view.advance(sequence.tokens, len(sequence) - 1)",
        new="view.advance(sequence.tokens, len(sequence))",
        tests=(f"{MATCHING}::test_plain_decoding_is_the_oracle", f"{STOPS}::test_matching"),
    ),
    Mutant(
        name="tokens delivered behind the end",
        file="outrider/engine/commit.py",
        old="            if sequence.finish is not None:\n                break\n",
        new="",
        tests=(f"{STOPS}::test_matching", f"{STOPS}::test_rejection"),
    ),
    Mutant(
        name="log-probabilities of another row",
        file="outrider/engine/commit.py",
        old="scores.logits[first : first + len(committed)]",
        new="scores.logits[: len(committed)]",
        tests=(f"{STOPS}::test_plain", f"{STOPS}::test_matching"),
    ),
    Mutant(
        name="the oldest request preempted",
        file="outrider/schedule/admission.py",
        old="else:\n                self._preempt(self._running[-1])",
        new="else:\n                self._preempt(self._running[0])",
        tests=(
            "tests/property/test_admission.py"
            "::test_rows_come_in_order_of_arrival_and_the_youngest_is_preempted",
        ),
    ),
    Mutant(
        name="a draft more than can be delivered",
        file="outrider/schedule/admission.py",
        old="self._limits.max_context_len - len(sequence)) - 1",
        new="self._limits.max_context_len - len(sequence))",
        tests=(f"{STOPS}::test_no_more_is_verified_than_can_be_delivered",),
    ),
    Mutant(
        name="a source chosen by the token it drew",
        file="outrider/drafters/combined.py",
        old="is_blind=not is_greedy and",
        new="is_blind=False and",
        tests=(f"{JOINT}[combined]",),
    ),
    Mutant(
        name="a row does not see itself",
        file="outrider/target/layout.py",
        old="torch.arange(context) <= sees",
        new="torch.arange(context) < sees",
        tests=(
            f"{LAYOUT}::test_every_row_sees_its_own_past_and_nothing_else",
            f"{LAYOUT}::test_paged_attention_is_full_attention",
        ),
    ),
    Mutant(
        name="padding reads the slots of others",
        file="outrider/target/layout.py",
        old="slots[i, len(own) :] = own[0]",
        new="slots[i, len(own) :] = 0",
        tests=(f"{LAYOUT}::test_paged_attention_is_full_attention",),
    ),
    Mutant(
        name="a draft that is no number fails the rows before it",
        file="outrider/target/torch_target.py",
        old="self._run(layout, taps, is_careful=True)",
        new="self._run(layout, taps, is_careful=False)",
        tests=(f"{BAD_INPUT}::test_a_draft_that_is_not_a_number_harms_nobody",),
    ),
    Mutant(
        name="a row does not fail for a broken key it sees",
        file="outrider/target/paged.py",
        old="rows.masked_fill(spoiled[:, None, None], torch.nan)",
        new="rows",
        tests=(f"{BAD_INPUT}::test_a_nan_in_one_cache_does_not_reach_the_others",),
    ),
    Mutant(
        name="rejection searched for the global maximum",
        file="outrider/schedule/lengths.py",
        old="lengths = self._search(survival, shape, pick=first_descent)",
        new="lengths = self._search(survival, shape, pick=highest)",
        tests=(
            "tests/property/test_length_policies.py"
            "::test_lengths_decided_before_the_token_are_lossless",
            "tests/e2e/test_lossless_lengths.py::test_the_papers_counterexample_through_the_engine",
        ),
    ),
    Mutant(
        name="strict rows overlooked",
        file="outrider/engine/described.py",
        old='if kind == "rejection" and draft.probs is not None:',
        new='if kind == "rejection" and False:',
        tests=(
            "tests/e2e/test_lossless_lengths.py::test_the_papers_counterexample_through_the_engine",
        ),
    ),
    Mutant(
        name="tokens counted that were never reached",
        file="outrider/schedule/confidence.py",
        old="range(min(verified, accepted + 1))",
        new="range(verified)",
        tests=(
            "tests/unit/schedule/test_confidence.py::test_it_learns_how_often_drafts_are_accepted",
        ),
    ),
    Mutant(
        name="features of the next token",
        file="outrider/drafters/block/drafter.py",
        old="self.features[self.first : self.first + row.num_cached]",
        new="self.features[self.first + 1 : self.first + 1 + row.num_cached]",
        tests=(BLOCK,),
    ),
    Mutant(
        name="a block one position late",
        file="outrider/drafters/block/torch_runner.py",
        old="starts[:, None] + torch.arange(",
        new="starts[:, None] + 1 + torch.arange(",
        tests=(BLOCK,),
    ),
    Mutant(
        name="the dropped slot is the last",
        file="outrider/drafters/block/torch_runner.py",
        old="hidden[:, config.slots_dropped :]",
        new="hidden[:, : config.num_drafts]",
        tests=(f"{BLOCK}[anchor-drop-calm]",),
    ),
    Mutant(
        name="the anchor before every slot",
        file="outrider/drafters/block/markov_loop.py",
        old="torch.tensor([before]",
        new="torch.tensor([row.sequence.tokens[-1]]",
        tests=(f"{BLOCK}[anchor-first-calm]",),
    ),
    Mutant(
        name="a gap in a drafter's context forgotten",
        file="outrider/drafters/block/context.py",
        old="if self._filled[block] >= slot:\n                self._filled[block] = stop",
        new="if self._filled[block] >= 0:\n                self._filled[block] = stop",
        tests=("tests/property/test_context_book.py",),
    ),
    Mutant(
        name="features off by one layer",
        file="outrider/training/forward.py",
        old="batch.features[:, :width].to(dtype)",
        new="batch.features[:, config.hidden_size :][:, :width].to(dtype)",
        tests=(BLOCK_PARITY,),
    ),
    Mutant(
        name="slot 0 dropped in the wrong layout",
        file="outrider/training/forward.py",
        old="return rows[:, config.slots_dropped :]",
        new="return rows[:, : config.num_drafts]",
        tests=(BLOCK_PARITY,),
    ),
    Mutant(
        name="the token before a slot shifted by one",
        file="outrider/training/packing.py",
        old="sources.clamp(max=length - 1)",
        new="(sources + 1).clamp(max=length - 1)",
        tests=(BLOCK_PARITY, BLOCK_LABELS),
    ),
    Mutant(
        name="labels shifted by one",
        file="outrider/training/packing.py",
        old="torch.where(inside, sources + 1, 0)",
        new="torch.where(inside, sources, 0)",
        tests=(BLOCK_LABELS,),
    ),
    Mutant(
        name="a block sees its neighbour",
        file="outrider/drafters/block/network.py",
        old="(part.permute(2, 0, 1, 3) for part in own)",
        new="(part.roll(1, 0).permute(2, 0, 1, 3) for part in own)",
        tests=(BLOCK_PARITY,),
    ),
    Mutant(
        name="a block sees the features of its anchor",
        file="outrider/drafters/block/network.py",
        old="rows[None, :] >= segment.visible[:, None]",
        new="rows[None, :] > segment.visible[:, None]",
        tests=(
            BLOCK_PARITY,
            "tests/unit/training/test_loop.py"
            "::test_no_block_sees_its_neighbours_or_what_comes_after_its_anchor",
        ),
    ),
    Mutant(
        name="L1 pulls the wrong way",
        file="outrider/training/objectives.py",
        old="torch.where(drafted < teacher, -1.0, 1.0)",
        new="torch.where(drafted < teacher, 1.0, -1.0)",
        tests=("tests/unit/training/test_objectives.py",),
    ),
    Mutant(
        name="time per token counts the first token",
        file="outrider/core/exchange.py",
        old="/ (self.num_output - 1)",
        new="/ self.num_output",
        tests=(
            "tests/unit/analysis/test_serve_report.py",
            "tests/unit/serving/test_load_client.py",
        ),
    ),
    Mutant(
        name="an event without text is the first token",
        file="outrider/serving/load/client.py",
        old="if text or thought or ",
        new="if True or ",
        tests=("tests/unit/serving/test_load_client.py",),
    ),
    Mutant(
        name="drawn drafts that are refused vanish",
        file="outrider/verify/pruning.py",
        old="fitting if draft.probs is None else fitting + 1",
        new="fitting",
        tests=(f"{GRAMMAR}::test_the_law_under_rejection",),
    ),
    Mutant(
        name="a row that breaks is not taken back",
        file="outrider/engine/commit.py",
        old="        sequence.take_back()\n",
        new="",
        tests=(f"{RECOVERY}::test_text_that_cannot_be_made_fails_its_request_alone",),
    ),
    Mutant(
        name="a broken step forgets what it committed",
        file="outrider/engine/engine.py",
        old="start, sequence.num_reported = sequence.num_reported, sequence.num_output",
        new="start = sequence.num_reported = max(0, sequence.num_output - 1)",
        tests=(f"{RECOVERY}::test_tokens_of_a_step_that_could_not_report_come_with_the_next",),
    ),
    Mutant(
        name="clients that leave are served on",
        file="outrider/serving/driver.py",
        old="        if ticket.num_open:\n            error = Cancelled",
        new="        if not ticket.num_open:\n            error = Cancelled",
        tests=("tests/unit/serving/test_driver.py::test_the_queue_has_an_end",),
    ),
    Mutant(
        name="any key opens",
        file="outrider/serving/guard.py",
        old="if not hmac.compare_digest(given, self._expected):",
        new='if not given.startswith(b"Bearer "):',
        tests=("tests/e2e/test_serve_faults.py::test_only_with_the_key",),
    ),
    Mutant(
        name="a draft token counts where none was verified",
        file="outrider/serving/flight.py",
        old="        if done.verified:\n",
        new="        if done.drafted or done.verified == 0:\n",
        tests=("tests/e2e/test_serve.py::test_sums_over_requests_are_the_counters",),
    ),
)
