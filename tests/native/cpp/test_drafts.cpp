#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <vector>

#include "blend.h"
#include "check.h"
#include "ngram_lookup.h"
#include "suffix_automaton.h"

namespace outrider_test {

namespace {

using outrider::NgramLookup;
using outrider::SuffixAutomaton;
using Tokens = std::vector<int32_t>;

constexpr double kDoubt = 3.0;

// What came after each earlier occurrence of the last `length` tokens, in order.
Tokens follow_ups(const Tokens& text, size_t length) {
  Tokens seen;
  for (size_t end = length; end < text.size(); ++end) {
    if (std::equal(text.end() - static_cast<std::ptrdiff_t>(length), text.end(),
                   text.begin() + static_cast<std::ptrdiff_t>(end - length))) {
      seen.push_back(text[end]);
    }
  }
  return seen;
}

// The next token by scanning the text for ever shorter contexts.
bool scanned(const Tokens& text, size_t max_context, SuffixAutomaton::NextToken* found) {
  for (size_t length = std::min(max_context, text.size()); length > 0; --length) {
    const Tokens seen = follow_ups(text, length);
    if (seen.empty()) continue;
    std::map<int32_t, int> counts;
    for (const int32_t token : seen) ++counts[token];
    int32_t best = seen.back();
    for (auto token = seen.rbegin(); token != seen.rend(); ++token) {
      if (counts[*token] > counts[best]) best = *token;
    }
    found->token = best;
    found->context_len = static_cast<int32_t>(length);
    found->chance = counts[best] / (static_cast<double>(seen.size()) +
                                    kDoubt * static_cast<double>(counts.size()) /
                                        static_cast<double>(length));
    return true;
  }
  return false;
}

// Would catch counts lost in a split, and transitions lost when a state's are moved into the hash.
void equals_a_scan() {
  Random random(7);
  for (const int64_t alphabet : {2, 5, 40}) {
    Tokens text;
    SuffixAutomaton automaton(4, kDoubt);
    for (int i = 0; i < 400; ++i) {
      text.push_back(static_cast<int32_t>(random.below(alphabet)));
      automaton.append(text.back());
      SuffixAutomaton::NextToken own{}, wanted{};
      const bool has_own = automaton.next_token(automaton.tip(), &own);
      const bool is_same = has_own == scanned(text, 4, &wanted) && own.token == wanted.token &&
                           own.context_len == wanted.context_len && own.chance == wanted.chance;
      CHECK(is_same, "token %d of an alphabet of %d", i, static_cast<int>(alphabet));
      if (!is_same) return;
    }
  }
}

template <class Error, class Run>
bool throws(const Run& run) {
  try {
    run();
  } catch (const Error&) {
    return true;
  }
  return false;
}

// Would catch a seat or a token that is taken for an address.
void refuses_what_is_not_in_it() {
  SuffixAutomaton automaton(4, kDoubt);
  for (const int32_t token : {1, 2, 1}) automaton.append(token);
  for (const SuffixAutomaton::Seat seat : {SuffixAutomaton::Seat{99, 1}, {-1, 0}, {0, 1}, {1, -1}}) {
    CHECK(throws<std::invalid_argument>([&] { automaton.check(seat); }), "(%d, %d)", seat.state,
          seat.context_len);
  }
  CHECK(throws<std::invalid_argument>([&] { automaton.append(-1); }), "token %d", -1);
  CHECK(throws<std::invalid_argument>([&] { SuffixAutomaton(0, kDoubt); }), "context %d", 0);
}

// A table of one row at an odd address, whose offsets promise more entries than there are.
void a_table_that_lies_is_not_read_beyond_its_end() {
  const uint32_t offsets[2] = {0, 1000};
  const uint64_t entry = 0;
  std::vector<uint8_t> memory(1 + sizeof(offsets) + sizeof(entry));
  std::memcpy(memory.data() + 1, offsets, sizeof(offsets));
  std::memcpy(memory.data() + 1 + sizeof(offsets), &entry, sizeof(entry));
  NgramLookup table(memory.data() + 1, 1, memory.data() + 1 + sizeof(offsets), 1, 3);
  const int32_t recent[] = {5, 6, 7};
  NgramLookup::Guess guess{};
  CHECK(!table.guess(recent + 3, 3, &guess), "found token %d", guess.token);
  CHECK(!table.guess(recent, 0, &guess), "found token %d", guess.token);
}

outrider::BlendRule rule() {
  outrider::BlendRule rule;
  rule.max_context = 8;
  rule.doubt = kDoubt;
  rule.most_certain = 0.995;
  rule.rate = 0.03;
  rule.most_correction = 3.0;
  rule.last_slot = 7;
  return rule;
}

// Would catch verdicts on tokens that were never drafted, which a pruned draft can bring.
void verdicts_beyond_the_draft_are_harmless() {
  outrider::Blend blend(rule(), nullptr);
  outrider::DraftText text(rule());
  for (const int32_t token : {1, 2, 1, 2, 1}) text.own.append(token);
  text.limits = {3, 0.0, true, false};
  blend.draft(text);
  CHECK(text.picks.size() == 3, "%zu tokens", text.picks.size());
  CHECK(blend.learn(text, 9, 9) == 0.0, "expects more than %d", 0);
  CHECK(text.picks.empty(), "%zu tokens are left", text.picks.size());
  CHECK(blend.learn(text, 0, 0) == 0.0, "expects more than %d", 0);
}

}  // namespace

std::vector<Test> draft_tests() {
  return {{"drafts: the automaton equals a scan", equals_a_scan},
          {"drafts: what is not in the automaton is refused", refuses_what_is_not_in_it},
          {"drafts: a table that lies is not read beyond its end",
           a_table_that_lies_is_not_read_beyond_its_end},
          {"drafts: verdicts beyond the draft are harmless",
           verdicts_beyond_the_draft_are_harmless}};
}

}  // namespace outrider_test
