// Cheap drafts of many requests: drafters/blend.py and the merging of drafters/cheap.py, which say
// what is drafted and why. Both give the same tokens, sources and chances.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ngram_lookup.h"
#include "suffix_automaton.h"

namespace outrider {

// The numbers of drafters/blend.py and drafters/cheap.py.
struct BlendRule {
  int32_t max_context = 0;
  double doubt = 0;
  double most_certain = 0;
  double agreed = 0;
  double agreed_by_table = 0;
  double opposed = 0;
  double opposed_by_len = 0;
  double rate = 0;             // of learning
  double most_correction = 0;  // log-odds
  int32_t last_slot = 0;       // places of a network's draft from here on are corrected as one
};

enum class DraftSource : uint8_t { kText, kTable, kNetwork };

struct DraftPick {
  int32_t token;
  DraftSource source;
  double chance;
  double stated;  // log-odds before the correction that `key` stands for
  uint64_t key;
};

// The sum of the survivals of the picks from `first` on.
double expected_tokens(const std::vector<DraftPick>& picks, size_t first = 0);
// Tokens gained where all that pays is verified, if a row costs as many as `row_tokens`.
double worth_of(const std::vector<DraftPick>& picks, double row_tokens);

// How far a draft goes and how its tokens are judged.
struct DraftLimits {
  int32_t most;
  double least;  // survival
  bool is_greedy;
  bool is_blind;
};

// One request: its text, the tokens at its end that a table looks at, and its last draft.
struct DraftText {
  explicit DraftText(const BlendRule& rule) : own(rule.max_context, rule.doubt) {}

  SuffixAutomaton own;
  std::vector<int32_t> tail;
  std::vector<int32_t> recent;  // scratch: tail and the tokens drafted so far
  DraftLimits limits{};
  std::vector<DraftPick> picks;
};

class Blend {
 public:
  // `table` may be null; it must outlive this.
  Blend(const BlendRule& rule, NgramLookup* table) : rule_(rule), table_(table) {}

  const BlendRule& rule() const { return rule_; }
  // Tokens at the end of a text that a draft depends on besides the automaton.
  int32_t order() const { return table_ == nullptr ? 1 : table_->max_order(); }

  // Drafts behind a text that has caught up, by its limits, into its picks.
  void draft(DraftText& text);
  // Goes along with a network's draft, into the picks, by the limits of the last draft.
  void merge(DraftText& text, const std::vector<int32_t>& tokens,
             const std::vector<double>& chances);
  // Learns from what became of the picks and drops them. Returns the expected tokens of those that
  // were not judged, 0 if one was rejected.
  double learn(DraftText& text, int64_t accepted, int64_t verified);

 private:
  // A point behind the text and its recent drafted tokens, as the automaton sees it.
  using Seat = SuffixAutomaton::Seat;
  struct Place {
    DraftText* text;
    Seat seat;
    double survival;
  };

  bool pick(const DraftText& text, Seat seat, DraftPick* found);
  // Appends the next token to `picks` and goes on behind it; false where the draft ends.
  bool step(Place* place, std::vector<DraftPick>* picks);
  // Appends to `picks` all that can be drafted from here; the text's recent tokens stay.
  void rest(Place place, std::vector<DraftPick>* picks);
  std::vector<DraftPick> network_picks(const DraftText& text, const std::vector<int32_t>& tokens,
                                       const std::vector<double>& chances) const;

  DraftPick of_text(const SuffixAutomaton::NextToken& match, const NgramLookup::Guess* guess,
                    bool is_greedy) const;
  DraftPick of_table(const NgramLookup::Guess& guess, const SuffixAutomaton::NextToken* match,
                     bool is_greedy) const;
  DraftPick corrected(int32_t token, DraftSource source, double stated, uint64_t key) const;
  double logit(double chance) const;
  double chance_of(uint64_t key, double stated) const;

  BlendRule rule_;
  NgramLookup* table_;
  std::unordered_map<uint64_t, double> offsets_;
};

}  // namespace outrider
