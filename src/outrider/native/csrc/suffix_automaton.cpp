#include "suffix_automaton.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace outrider {

SuffixAutomaton::SuffixAutomaton(int32_t max_context, double doubt)
    : max_context_(max_context), doubt_(doubt) {
  if (max_context < 1) {
    throw std::invalid_argument("max_context is " + std::to_string(max_context) +
                                ", but a context has at least 1 token");
  }
  add_state(0);
  states_[kRoot].link = kNone;
}

void SuffixAutomaton::append(int32_t token) {
  if (token < 0) {
    throw std::invalid_argument("token " + std::to_string(token) + " is negative");
  }
  if (num_tokens_ >= kMostTokens) throw std::length_error("the text has too many tokens");
  grow(token);
  tally(token);
  ++num_tokens_;
}

void SuffixAutomaton::end_sequence() {
  last_ = kRoot;
  tip_ = Seat();
}

void SuffixAutomaton::check(Seat seat) const {
  if (seat.state < 0 || seat.state >= num_states() || seat.context_len < 0 ||
      seat.context_len > lengths_[seat.state]) {
    throw std::invalid_argument("(" + std::to_string(seat.state) + ", " +
                                std::to_string(seat.context_len) +
                                ") is no seat of this automaton");
  }
}

bool SuffixAutomaton::next_token(Seat seat, NextToken* found) const {
  int32_t state = seat.state;
  int32_t context_len = seat.context_len;
  while (state != kRoot && !states_[state].followed) {
    context_len = states_[state].link_length;
    state = states_[state].link;
  }
  if (context_len < 1) return false;
  const State& at = states_[state];
  const State& target = states_[at.favourite_target];
  // In the order in which Python computes it: the chances are the same to the last bit.
  found->chance = target.count / (at.followed + doubt_ * at.num_edges / context_len);
  found->token = at.favourite;
  found->context_len = context_len;
  found->seat = clip(at.favourite_target, context_len + 1);
  return true;
}

SuffixAutomaton::Seat SuffixAutomaton::follow(Seat seat, int32_t token) const {
  int32_t state = seat.state;
  int32_t context_len = seat.context_len;
  int32_t target = target_of(state, token);
  while (target == kNone && state != kRoot) {
    context_len = states_[state].link_length;
    state = states_[state].link;
    target = target_of(state, token);
  }
  if (target == kNone) return {state, context_len};
  return clip(target, context_len + 1);
}

int64_t SuffixAutomaton::bytes() const {
  return static_cast<int64_t>(states_.capacity() * sizeof(State) +
                              lengths_.capacity() * sizeof(int32_t) +
                              edges_.capacity() * sizeof(Edge) + wide_.bytes());
}

// Caps a context at max_context and finds the state it is in then.
SuffixAutomaton::Seat SuffixAutomaton::clip(int32_t state, int32_t context_len) const {
  context_len = std::min(context_len, max_context_);
  while (states_[state].link_length >= context_len) state = states_[state].link;
  return {state, context_len};
}

void SuffixAutomaton::grow(int32_t token) {
  const int32_t known = find_edge(last_, token);
  if (known != kNone) {  // only where an earlier sequence began in the same way
    last_ = suffix_state(last_, known, token);
    return;
  }
  const int32_t added = add_state(lengths_[last_] + 1);
  int32_t state = last_;
  int32_t edge = kNone;
  while (state != kNone && (edge = find_edge(state, token)) == kNone) {
    add_edge(state, token, added);
    state = states_[state].link;
  }
  set_link(added, state == kNone ? kRoot : suffix_state(state, edge, token));
  last_ = added;
}

// The state whose longest string is that of `parent` plus `token`, split off where needed.
int32_t SuffixAutomaton::suffix_state(int32_t parent, int32_t edge, int32_t token) {
  const int32_t state = edges_[edge].target;
  const int32_t length = lengths_[parent] + 1;
  if (lengths_[state] == length) return state;
  const int32_t shorter = split(state, length);
  while (edge != kNone && edges_[edge].target == state) {
    edges_[edge].target = shorter;
    if (states_[parent].favourite_target == state) states_[parent].favourite_target = shorter;
    parent = states_[parent].link;
    edge = parent == kNone ? kNone : find_edge(parent, token);
  }
  return shorter;
}

// A copy of a state for its strings of up to `length` tokens; the state keeps the longer ones.
int32_t SuffixAutomaton::split(int32_t state, int32_t length) {
  const int32_t shorter = add_state(length);
  const State from = states_[state];
  set_link(shorter, from.link);
  set_link(state, shorter);
  State& copy = states_[shorter];
  copy.count = from.count;
  copy.followed = from.followed;
  copy.favourite = from.favourite;
  copy.favourite_target = from.favourite_target;
  for (int32_t edge = from.first_edge; edge != kNone; edge = edges_[edge].next) {
    const Edge copied = edges_[edge];
    add_edge(shorter, copied.token, copied.target);
  }
  return shorter;
}

int32_t SuffixAutomaton::add_state(int32_t length) {
  states_.push_back(State());
  lengths_.push_back(length);
  return static_cast<int32_t>(states_.size()) - 1;
}

void SuffixAutomaton::set_link(int32_t state, int32_t link) {
  states_[state].link = link;
  states_[state].link_length = lengths_[link];
}

// Counts `token` as the follow-up of every context that ended just before it.
void SuffixAutomaton::tally(int32_t token) {
  const int32_t reached = target_of(tip_.state, token);
  int32_t state = tip_.state;
  int32_t target = reached;
  int32_t counted = kRoot;
  while (true) {
    if (target != counted) {  // contexts of different states can meet in one
      ++states_[target].count;
      counted = target;
    }
    State& at = states_[state];
    if (!at.followed || states_[target].count >= states_[at.favourite_target].count) {
      at.favourite = token;
      at.favourite_target = target;
    }
    ++at.followed;
    state = at.link;
    if (state == kNone) break;
    target = target_of(state, token);
  }
  tip_ = clip(reached, tip_.context_len + 1);
}

int32_t SuffixAutomaton::target_of(int32_t state, int32_t token) const {
  const State& at = states_[state];
  if (at.followed && at.favourite == token) return at.favourite_target;
  const int32_t edge = find_edge(state, token);
  return edge == kNone ? kNone : edges_[edge].target;
}

int32_t SuffixAutomaton::find_edge(int32_t state, int32_t token) const {
  const State& at = states_[state];
  if (at.num_edges > kMostListed) return wide_.find(state, token);
  int32_t edge = at.first_edge;
  while (edge != kNone && edges_[edge].token != token) edge = edges_[edge].next;
  return edge;
}

void SuffixAutomaton::add_edge(int32_t state, int32_t token, int32_t target) {
  State& at = states_[state];
  const auto added = static_cast<int32_t>(edges_.size());
  edges_.push_back({token, target, at.first_edge});
  at.first_edge = added;
  ++at.num_edges;
  if (at.num_edges <= kMostListed) return;
  // The first one too many brings those before it along.
  const int32_t end = at.num_edges == kMostListed + 1 ? kNone : edges_[added].next;
  for (int32_t edge = added; edge != end; edge = edges_[edge].next) {
    wide_.insert(state, edges_[edge].token, edge);
  }
}

size_t SuffixAutomaton::EdgeMap::first_slot(int32_t state, int32_t token) const {
  const uint64_t key = static_cast<uint64_t>(state) << 32 | static_cast<uint32_t>(token);
  const uint64_t mixed = key * 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(mixed ^ (mixed >> 32)) & (slots_.size() - 1);
}

int32_t SuffixAutomaton::EdgeMap::find(int32_t state, int32_t token) const {
  for (size_t i = first_slot(state, token);; i = (i + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[i];
    if (slot.state == kNone || (slot.state == state && slot.token == token)) return slot.edge;
  }
}

void SuffixAutomaton::EdgeMap::insert(int32_t state, int32_t token, int32_t edge) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  size_t i = first_slot(state, token);
  while (slots_[i].state != kNone) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {state, token, edge};
  ++used_;
}

void SuffixAutomaton::EdgeMap::grow() {
  const std::vector<Slot> before = std::move(slots_);
  slots_.assign(std::max<size_t>(32, 2 * before.size()), Slot());
  used_ = 0;
  for (const Slot& slot : before) {
    if (slot.state != kNone) insert(slot.state, slot.token, slot.edge);
  }
}

}  // namespace outrider
