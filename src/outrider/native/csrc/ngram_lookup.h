// Look-ups in an n-gram table that lies in somebody else's memory, as a rule a mapped file; the
// format is told in drafters/ngram_table_file.py.

#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

class NgramLookup {
 public:
  struct Guess {
    int32_t token;
    int32_t order;  // length of the context that was found
    double chance;
  };

  // `offsets` are num_rows + 1 uint32, `entries` uint64, both little-endian and at any address.
  // Throws std::invalid_argument unless there is a row and max_order is at least 1.
  NgramLookup(const uint8_t* offsets, int64_t num_rows, const uint8_t* entries, int64_t num_entries,
              int32_t max_order);

  int32_t max_order() const { return max_order_; }
  // The longest suffix of the `count` tokens before `end` that the table holds; false if none.
  bool guess(const int32_t* end, int64_t count, Guess* found);

 private:
  bool find(uint64_t key, uint64_t* entry) const;
  uint64_t row_of(uint64_t key) const;
  uint64_t offset(uint64_t row) const;

  const uint8_t* offsets_;
  const uint8_t* entries_;
  uint64_t num_rows_;
  uint64_t num_entries_;
  int32_t max_order_;
  std::vector<uint64_t> keys_;  // scratch
};

}  // namespace outrider
