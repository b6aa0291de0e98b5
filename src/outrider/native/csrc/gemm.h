// Products of activations with packed weights: y[row][out] = sum over in of x[row][in] *
// w[out][in].
//
// The bits of y[row][out] depend on x[row] and the weight matrix only: never on the other rows,
// their number, the thread count, the matrices that share the call, or the instruction-set level.
// For quantised weights, activations are rounded to int8 with one scale per 32 inputs; dot products
// inside such a block are exact integers, and blocks are folded in ascending order in float32 by
// one fixed sequence of fused multiply-adds. For BF16 and F32 weights, the float32 activations are
// used as they are and accumulated over ascending inputs in two interleaved sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "cpu.h"
#include "pack.h"
#include "threads.h"

namespace outrider {

// One matrix of a call and where its result goes: y[row * ld + out].
struct Product {
  const PackedMatrix* weight = nullptr;
  float* y = nullptr;
  int64_t ld = 0;
  bool accumulate = false;  // y += x wᵀ instead of y = x wᵀ (a residual, or a bias put in before)
};

// Runs products on a pool and keeps the scratch memory they need. Not for concurrent use.
class Gemm {
 public:
  explicit Gemm(ThreadPool& pool, Isa isa = detect_isa());
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // All matrices must have the same in_features and may have different types; they run as one
  // parallel region and share the rounding of x. x[row * ldx + in]; x and y must not overlap.
  // Any number of rows; 1 to 64 is the design range.
  void matmul(const Product* products, size_t count, const float* x, int64_t ldx, int64_t rows);

  void matmul(std::initializer_list<Product> products, const float* x, int64_t ldx, int64_t rows) {
    matmul(products.begin(), products.size(), x, ldx, rows);
  }

  Isa isa() const { return isa_; }

 private:
  struct Scratch;
  ThreadPool& pool_;
  Isa isa_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace outrider
