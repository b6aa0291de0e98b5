"""Masks of the grammar library against derivatives of regular expressions."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.matcher import TokenMatcher
from tests import harness
from tests.grammars import END, VOCAB, Expression, compiler, expressions, form, token_mask
from tests.unchecked import unchecked

harness.require_module("llguidance")


def tokens_of(mask: bytes) -> set[int]:
    return {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1}


def walk(expression: Expression, choices: list[int]) -> list[int]:
    """An output the grammar allows, as far as it goes."""
    allowed, output = token_mask(expression), list[int]()
    for choice in choices:
        coming = sorted(allowed(output))
        if not coming or END in output:
            break
        output.append(coming[choice % len(coming)])
    return output


@given(
    expression=expressions,
    choices=st.lists(st.integers(0, 100), max_size=6),
    drafts=st.lists(st.integers(0, VOCAB - 1), max_size=4),
)
@unchecked()
def test_masks_are_those_of_the_expression(
    expression: Expression, choices: list[int], drafts: list[int]
) -> None:
    """Catches a mask of another position, special or padded ids that pass, a wrong end."""
    matcher, oracle = compiler().matcher(form(expression)), token_mask(expression)
    output = walk(expression, choices)
    masks = matcher.masks(output, drafts)
    assert len(masks) == len(drafts) + 1
    is_open = True
    for i, mask in enumerate(masks):
        is_open = is_open and (i == 0 or drafts[i - 1] in oracle([*output, *drafts[: i - 1]]))
        wanted = oracle([*output, *drafts[:i]]) if is_open else set()
        assert tokens_of(mask) == wanted, (expression.text, output, drafts[:i])


@given(expression=expressions, data=st.data())
@unchecked()
def test_answers_do_not_depend_on_what_was_asked_before(
    expression: Expression, data: st.DataObject
) -> None:
    """Catches state that a rejected draft, a preemption or a refused token leaves behind."""
    used: TokenMatcher = compiler().matcher(form(expression))
    for _ in range(5):
        output = walk(expression, data.draw(st.lists(st.integers(0, 100), max_size=5)))
        output = [token for token in output if token != END]
        good = walk(expression, data.draw(st.lists(st.integers(0, 100), max_size=7)))
        drafts = data.draw(
            st.sampled_from([good[len(output) :], [*good[len(output) :], 0, 2], [VOCAB - 1, 3]])
        )
        fresh = compiler().matcher(form(expression))
        if data.draw(st.booleans()):
            assert used.num_fitting(output, drafts) == fresh.num_fitting(output, drafts)
        fresh = compiler().matcher(form(expression))
        assert used.masks(output, drafts) == fresh.masks(output, drafts)


@given(expression=expressions, drafts=st.lists(st.integers(0, VOCAB - 1), max_size=5))
@unchecked()
def test_fitting_drafts_are_those_the_masks_allow(
    expression: Expression, drafts: list[int]
) -> None:
    """Catches pruning that cuts too early or too late."""
    matcher = compiler().matcher(form(expression))
    masks = matcher.masks([], drafts)
    fitting = next(
        (i for i, token in enumerate(drafts) if token not in tokens_of(masks[i])), len(drafts)
    )
    # Behind the end only the end may come, so a repeated end is allowed and pruned.
    ends = drafts.index(END) + 1 if END in drafts else len(drafts)
    assert matcher.num_fitting([], drafts) == min(fitting, ends)
