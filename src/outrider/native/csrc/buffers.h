// Memory for results that Python holds for a while: handed back, it serves the next call.
//
// Fresh memory for megabytes of logits would be mapped and cleared page by page in every step.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace outrider {

class Buffers : public std::enable_shared_from_this<Buffers> {
 public:
  class Lease {
   public:
    Lease(std::shared_ptr<Buffers> from, std::vector<float> memory)
        : from_(std::move(from)), memory_(std::move(memory)) {}
    ~Lease() { from_->take_back(std::move(memory_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    float* data() { return memory_.data(); }

   private:
    std::shared_ptr<Buffers> from_;
    std::vector<float> memory_;
  };

  // At least `size` numbers with any contents.
  std::unique_ptr<Lease> lease(size_t size) {
    std::vector<float> memory;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const size_t own = class_of(size);
      // A spare of the next class is less than four times as large as what is asked for.
      for (size_t c = own; c < kClasses && c <= own + 1 && memory.empty(); c++) {
        auto& spare = spare_[c];
        for (size_t i = spare.size(); i-- > 0 && memory.empty();) {
          if (spare[i].size() < size) continue;
          memory = std::move(spare[i]);
          spare.erase(spare.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
    }
    if (memory.size() < size) memory.resize(rounded(size));
    return std::make_unique<Lease>(shared_from_this(), std::move(memory));
  }

 private:
  static constexpr size_t kClasses = 64;
  // Windows change their size from step to step, and small results that are kept for long come
  // back many at once: neither may push out the memory of the logits, so each class has its own.
  // Features of many steps are held until a drafter wants them; all of them are to be lent again.
  static constexpr size_t kLeastSpareOfClass = 3;
  static constexpr size_t kSpareNumbersOfClass = size_t{6} << 20;

  // Place of the highest bit: sizes of one class differ by less than a factor of two.
  static size_t class_of(size_t size) {
    size_t place = 0;
    while (size >>= 1) place++;
    return place;
  }

  // Up to a quarter of the class's least size more, so that nearby sizes share memory.
  static size_t rounded(size_t size) {
    const size_t step = std::max<size_t>((size_t{1} << class_of(size)) / 4, 1);
    return (size + step - 1) / step * step;
  }

  void take_back(std::vector<float> memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& spare = spare_[class_of(memory.size())];
    const size_t size = std::max<size_t>(memory.size(), 1);
    const size_t most = std::max(kLeastSpareOfClass, kSpareNumbersOfClass / size);
    if (spare.size() >= most) spare.erase(spare.begin());
    spare.push_back(std::move(memory));
  }

  std::mutex mutex_;
  std::array<std::vector<std::vector<float>>, kClasses> spare_;
};

}  // namespace outrider
