// The suffix automaton of a growing text: drafters/suffix_automaton.py in flat arrays, which says
// what is counted and why. Both give the same drafts and the same chances.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace outrider {

class SuffixAutomaton {
 public:
  // A state, and how many of the last tokens are in it.
  struct Seat {
    int32_t state = 0;
    int32_t context_len = 0;
  };
  struct NextToken {
    int32_t token;
    int32_t context_len;
    double chance;
    Seat seat;
  };

  // More tokens would make more transitions than 31 bits can number.
  static constexpr int64_t kMostTokens = int64_t{1} << 29;

  // Counts contexts of up to `max_context` tokens. Throws std::invalid_argument below 1.
  SuffixAutomaton(int32_t max_context, double doubt);

  // Throws std::invalid_argument for a negative token, std::length_error beyond kMostTokens.
  void append(int32_t token);
  void end_sequence();

  // The seat of the text itself; good until the next token.
  Seat tip() const { return tip_; }
  // Throws std::invalid_argument for a seat that is not in here.
  void check(Seat seat) const;
  // False where nothing ever followed any suffix of the context.
  bool next_token(Seat seat, NextToken* found) const;
  Seat follow(Seat seat, int32_t token) const;

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_states() const { return static_cast<int64_t>(states_.size()); }
  int64_t num_transitions() const { return static_cast<int64_t>(edges_.size()); }
  int32_t max_context() const { return max_context_; }
  // Memory reserved.
  int64_t bytes() const;

 private:
  static constexpr int32_t kRoot = 0;
  static constexpr int32_t kNone = -1;
  // States with more transitions than this are looked up by hash instead of one by one.
  static constexpr int32_t kMostListed = 8;

  // What drafts need of a state lies in one half of a cache line: texts are cold when a step begins.
  struct alignas(32) State {
    int32_t link = kRoot;
    int32_t link_length = 0;  // of the longest string of the linked state
    int32_t count = 0;        // occurrences
    int32_t followed = 0;     // occurrences with a next token
    int32_t favourite = 0;    // commonest next token, the latest seen of equals, if one followed
    int32_t favourite_target = kNone;
    int32_t num_edges = 0;
    int32_t first_edge = kNone;
  };
  struct Edge {
    int32_t token;
    int32_t target;
    int32_t next;  // of the same state
  };
  // A hash table of transitions, grown at half full; nothing is ever taken out.
  class EdgeMap {
   public:
    int32_t find(int32_t state, int32_t token) const;
    void insert(int32_t state, int32_t token, int32_t edge);
    size_t bytes() const { return slots_.capacity() * sizeof(Slot); }

   private:
    struct Slot {
      int32_t state = kNone;
      int32_t token = 0;
      int32_t edge = kNone;
    };
    size_t first_slot(int32_t state, int32_t token) const;
    void grow();

    std::vector<Slot> slots_;
    size_t used_ = 0;
  };

  int32_t find_edge(int32_t state, int32_t token) const;
  int32_t target_of(int32_t state, int32_t token) const;
  void add_edge(int32_t state, int32_t token, int32_t target);
  int32_t add_state(int32_t length);
  void set_link(int32_t state, int32_t link);
  void grow(int32_t token);
  int32_t suffix_state(int32_t parent, int32_t edge, int32_t token);
  int32_t split(int32_t state, int32_t length);
  void tally(int32_t token);
  Seat clip(int32_t state, int32_t context_len) const;

  int32_t max_context_;
  double doubt_;
  int64_t num_tokens_ = 0;
  std::vector<State> states_;
  std::vector<int32_t> lengths_;  // of the longest string, by state
  std::vector<Edge> edges_;
  EdgeMap wide_;
  int32_t last_ = kRoot;
  Seat tip_;
};

}  // namespace outrider
