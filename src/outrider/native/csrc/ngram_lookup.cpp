#include "ngram_lookup.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace outrider {

namespace {

constexpr uint64_t kStart = 0x9E3779B97F4A7C15u;
constexpr uint64_t kMultiplier = 0xBF58476D1CE4E5B9u;
constexpr int kShift = 29;
constexpr double kChanceSteps = 255.0;

}  // namespace

NgramLookup::NgramLookup(const uint8_t* offsets, int64_t num_rows, const uint8_t* entries,
                         int64_t num_entries, int32_t max_order)
    : offsets_(offsets),
      entries_(entries),
      num_rows_(static_cast<uint64_t>(num_rows)),
      num_entries_(static_cast<uint64_t>(num_entries)),
      max_order_(max_order) {
  if (num_rows < 1 || num_rows > int64_t{UINT32_MAX} || max_order < 1) {
    throw std::invalid_argument("a table of " + std::to_string(num_rows) + " rows and orders up to " +
                                std::to_string(max_order) + " holds nothing");
  }
}

bool NgramLookup::guess(const int32_t* end, int64_t count, Guess* found) {
  keys_.clear();
  uint64_t key = kStart;
  for (int64_t order = 1; order <= std::min<int64_t>(count, max_order_); ++order) {
    key = (key ^ (static_cast<uint64_t>(end[-order]) + 1)) * kMultiplier;
    key ^= key >> kShift;
    keys_.push_back(key);
  }
  for (size_t order = keys_.size(); order > 0; --order) {
    uint64_t entry;
    if (!find(keys_[order - 1], &entry)) continue;
    found->token = static_cast<int32_t>((entry & UINT32_MAX) >> 8);
    found->chance = static_cast<double>(entry & 0xFF) / kChanceSteps;
    found->order = static_cast<int32_t>(order);
    return true;
  }
  return false;
}

bool NgramLookup::find(uint64_t key, uint64_t* entry) const {
  const uint64_t check = key >> 32;
  const uint64_t row = row_of(key);
  // Whatever a file says, nothing beyond its entries is read.
  const uint64_t end = std::min(offset(row + 1), num_entries_);
  for (uint64_t i = offset(row); i < end; ++i) {
    std::memcpy(entry, entries_ + 8 * i, sizeof(*entry));
    if (*entry >> 32 == check) return true;
  }
  return false;
}

uint64_t NgramLookup::row_of(uint64_t key) const { return (key & UINT32_MAX) * num_rows_ >> 32; }

uint64_t NgramLookup::offset(uint64_t row) const {
  uint32_t value;
  std::memcpy(&value, offsets_ + 4 * row, sizeof(value));
  return value;
}

}  // namespace outrider
