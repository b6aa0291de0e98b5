// Memory for results that Python holds for a while: handed back, it serves the next call.
//
// Fresh memory for megabytes of logits would be mapped and cleared page by page in every step.

#pragma once

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
      size_t best = spare_.size();
      for (size_t i = 0; i < spare_.size(); i++) {
        const bool fits = spare_[i].size() >= size && spare_[i].size() <= kMostWaste * size;
        if (fits && (best == spare_.size() || spare_[i].size() < spare_[best].size())) best = i;
      }
      if (best < spare_.size()) {
        memory = std::move(spare_[best]);
        spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(best));
      }
    }
    if (memory.size() < size) memory.resize(size);
    return std::make_unique<Lease>(shared_from_this(), std::move(memory));
  }

 private:
  static constexpr size_t kMostSpare = 6;
  // A small result that is kept for long must not keep the memory of the logits.
  static constexpr size_t kMostWaste = 4;

  void take_back(std::vector<float> memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spare_.size() == kMostSpare) spare_.erase(spare_.begin());
    spare_.push_back(std::move(memory));
  }

  std::mutex mutex_;
  std::vector<std::vector<float>> spare_;
};

}  // namespace outrider
