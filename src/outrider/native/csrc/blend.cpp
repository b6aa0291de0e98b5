#include "blend.h"

#include <algorithm>
#include <cmath>

namespace outrider {

namespace {

// What tokens are corrected together; `number` is a length or a place, by source.
uint64_t key_of(DraftSource source, int64_t number, bool flag, bool is_greedy) {
  return static_cast<uint64_t>(number) << 5 | static_cast<uint64_t>(source) << 3 |
         static_cast<uint64_t>(flag) << 2 | static_cast<uint64_t>(is_greedy) << 1;
}

// Of a network's token on which the source of `key` agrees.
uint64_t agreed_key(uint64_t key) { return key | 1; }

const int32_t* end_of(const std::vector<int32_t>& tokens) {
  return tokens.data() + tokens.size();
}

int64_t size_of(const std::vector<int32_t>& tokens) { return static_cast<int64_t>(tokens.size()); }

int64_t bit_length(int32_t value) { return 32 - __builtin_clz(static_cast<uint32_t>(value)); }

}  // namespace

double expected_tokens(const std::vector<DraftPick>& picks, size_t first) {
  double expected = 0.0;
  double survival = 1.0;
  for (size_t i = first; i < picks.size(); ++i) {
    survival *= picks[i].chance;
    expected += survival;
  }
  return expected;
}

double worth_of(const std::vector<DraftPick>& picks, double row_tokens) {
  double worth = 0.0;
  double survival = 1.0;
  for (const DraftPick& pick : picks) {
    survival *= pick.chance;
    if (survival < row_tokens) break;
    worth += survival - row_tokens;
  }
  return worth;
}

void Blend::draft(DraftText& text) {
  text.picks.clear();
  text.recent = text.tail;
  rest({&text, text.own.tip(), 1.0}, &text.picks);
}

void Blend::merge(DraftText& text, const std::vector<int32_t>& tokens,
                  const std::vector<double>& chances) {
  const DraftLimits& limits = text.limits;
  const std::vector<DraftPick> network = network_picks(text, tokens, chances);
  std::vector<DraftPick>& picks = text.picks;
  picks.clear();
  text.recent = text.tail;
  Place place{&text, text.own.tip(), 1.0};
  for (size_t slot = 0; slot < network.size() && slot < static_cast<size_t>(limits.most); ++slot) {
    const DraftPick& own = network[slot];
    DraftPick pick = own;
    DraftPick other;
    if (this->pick(text, place.seat, &other)) {
      if (limits.is_blind) {
        if (other.chance > own.chance) pick = other;
      } else if (other.token == own.token) {
        const double stated = logit(std::max(own.chance, other.chance)) + rule_.agreed;
        pick = corrected(own.token, own.source, stated, agreed_key(other.key));
      } else if (other.chance > own.chance) {
        std::vector<DraftPick> instead(picks);
        rest(place, &instead);
        if (expected_tokens(instead, slot) > expected_tokens(network, slot)) {
          picks = std::move(instead);
          return;
        }
      }
    }
    place.survival *= pick.chance;
    if (place.survival < limits.least) return;
    picks.push_back(pick);
    place.seat = text.own.follow(place.seat, pick.token);
    text.recent.push_back(pick.token);
    if (pick.token != own.token) break;
  }
  rest(place, &picks);
}

double Blend::learn(DraftText& text, int64_t accepted, int64_t verified) {
  const auto count = static_cast<int64_t>(text.picks.size());
  for (int64_t i = 0; i < count && i <= accepted && i < verified; ++i) {
    const DraftPick& pick = text.picks[static_cast<size_t>(i)];
    const double error = (i < accepted ? 1.0 : 0.0) - chance_of(pick.key, pick.stated);
    double& offset = offsets_[pick.key];
    const double moved = offset + rule_.rate * error;
    offset = std::max(-rule_.most_correction, std::min(rule_.most_correction, moved));
  }
  const int64_t first = std::clamp<int64_t>(verified, 0, count);
  const double unjudged =
      accepted == verified ? expected_tokens(text.picks, static_cast<size_t>(first)) : 0.0;
  text.picks.clear();
  return unjudged;
}

bool Blend::step(Place* place, std::vector<DraftPick>* picks) {
  DraftText& text = *place->text;
  DraftPick found;
  if (picks->size() >= static_cast<size_t>(text.limits.most) || !pick(text, place->seat, &found)) {
    return false;
  }
  place->survival *= found.chance;
  if (place->survival < text.limits.least) return false;
  picks->push_back(found);
  place->seat = text.own.follow(place->seat, found.token);
  text.recent.push_back(found.token);
  return true;
}

void Blend::rest(Place place, std::vector<DraftPick>* picks) {
  const size_t num_recent = place.text->recent.size();
  while (step(&place, picks)) continue;
  place.text->recent.resize(num_recent);
}

// The likeliest next token that a source knows; false if none knows any.
bool Blend::pick(const DraftText& text, Seat seat, DraftPick* found) {
  const bool is_greedy = text.limits.is_greedy;
  SuffixAutomaton::NextToken match;
  NgramLookup::Guess guess;
  const bool has_match = text.own.next_token(seat, &match);
  const bool has_guess =
      table_ != nullptr && table_->guess(end_of(text.recent), size_of(text.recent), &guess);
  if (!has_match) {
    if (has_guess) *found = of_table(guess, nullptr, is_greedy);
    return has_guess;
  }
  *found = of_text(match, has_guess ? &guess : nullptr, is_greedy);
  if (has_guess && guess.token != match.token) {
    const DraftPick other = of_table(guess, &match, is_greedy);
    if (found->chance < other.chance) *found = other;
  }
  return true;
}

std::vector<DraftPick> Blend::network_picks(const DraftText& text,
                                            const std::vector<int32_t>& tokens,
                                            const std::vector<double>& chances) const {
  std::vector<DraftPick> picks;
  picks.reserve(tokens.size());
  for (size_t slot = 0; slot < tokens.size(); ++slot) {
    const auto place = std::min<int64_t>(static_cast<int64_t>(slot), rule_.last_slot);
    const uint64_t key = key_of(DraftSource::kNetwork, place, false, text.limits.is_greedy);
    picks.push_back(corrected(tokens[slot], DraftSource::kNetwork, logit(chances[slot]), key));
  }
  return picks;
}

DraftPick Blend::of_text(const SuffixAutomaton::NextToken& match, const NgramLookup::Guess* guess,
                         bool is_greedy) const {
  double stated = logit(match.chance);
  const bool agrees = guess != nullptr && guess->token == match.token;
  if (agrees) stated += rule_.agreed + rule_.agreed_by_table * logit(guess->chance);
  const uint64_t key =
      key_of(DraftSource::kText, bit_length(match.context_len), agrees, is_greedy);
  return corrected(match.token, DraftSource::kText, stated, key);
}

DraftPick Blend::of_table(const NgramLookup::Guess& guess,
                          const SuffixAutomaton::NextToken* match, bool is_greedy) const {
  double stated = logit(guess.chance);
  if (match != nullptr) {
    stated -= rule_.opposed + rule_.opposed_by_len * std::log(double(match->context_len));
  }
  const uint64_t key = key_of(DraftSource::kTable, guess.order, match == nullptr, is_greedy);
  return corrected(guess.token, DraftSource::kTable, stated, key);
}

DraftPick Blend::corrected(int32_t token, DraftSource source, double stated, uint64_t key) const {
  return {token, source, chance_of(key, stated), stated, key};
}

// Log-odds of a chance; certainty counts as 199 to 1.
double Blend::logit(double chance) const {
  if (chance > rule_.most_certain) {
    chance = rule_.most_certain;
  } else if (chance < 1 - rule_.most_certain) {
    chance = 1 - rule_.most_certain;
  }
  return std::log(chance / (1 - chance));
}

double Blend::chance_of(uint64_t key, double stated) const {
  const auto found = offsets_.find(key);
  const double offset = found == offsets_.end() ? 0.0 : found->second;
  return 1 / (1 + std::exp(-stated - offset));
}

}  // namespace outrider
