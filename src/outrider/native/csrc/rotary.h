// Cosines and sines by position, computed once per position and kept.

#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace outrider {

class Rotary {
 public:
  // `frequencies` holds the angle per position of every pair of dimensions; cosines and sines are
  // multiplied by `factor`.
  Rotary(std::vector<float> frequencies, float factor)
      : frequencies_(std::move(frequencies)), factor_(factor) {}

  // Makes the positions below `count` available. Not for concurrent use.
  void reach(int64_t count) {
    const auto pairs = static_cast<int64_t>(frequencies_.size());
    const int64_t known = static_cast<int64_t>(table_.size()) / (2 * pairs);
    if (count <= known) return;
    table_.resize(count * 2 * pairs);
    for (int64_t position = known; position < count; position++) {
      float* row = table_.data() + position * 2 * pairs;
      for (int64_t i = 0; i < pairs; i++) {
        // The angle is rounded to float32 like that of the reference, its cosine only once.
        const double angle = static_cast<float>(position) * frequencies_[i];
        row[i] = static_cast<float>(std::cos(angle)) * factor_;
        row[pairs + i] = static_cast<float>(std::sin(angle)) * factor_;
      }
    }
  }

  const float* cosines(int64_t position) const {
    return table_.data() + position * 2 * static_cast<int64_t>(frequencies_.size());
  }
  const float* sines(int64_t position) const { return cosines(position) + frequencies_.size(); }

 private:
  std::vector<float> frequencies_;
  float factor_;
  std::vector<float> table_;
};

}  // namespace outrider
