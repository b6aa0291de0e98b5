#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "loss_kernels.h"
#include "module.h"

namespace outrider {

namespace {

template <typename T, int dims>
using Array = nb::ndarray<T, nb::ndim<dims>, nb::c_contig, nb::device::cpu>;

const LossKernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512vnni) return loss_kernels_avx512();
  if (isa == Isa::avx2 || isa == Isa::avxvnni) return loss_kernels_avx2();
#endif
  (void)isa;
  return loss_kernels_portable();
}

void check_size(size_t size) {
  if (size == 0 || size % 16 != 0) {
    throw std::invalid_argument("rows have " + std::to_string(size) +
                                " columns, but they need a multiple of 16");
  }
}

// Every index is checked before a row is touched.
void check(const Array<int16_t, 2>& logits, const Array<const int16_t, 2>& teacher,
           const Array<const int64_t, 1>& teacher_rows, const Array<const int64_t, 1>& labels,
           const Array<const float, 2>& weights, const Array<float, 2>& terms) {
  const size_t rows = logits.shape(0), size = logits.shape(1);
  check_size(size);
  if (teacher.shape(1) != size) {
    throw std::invalid_argument("logits and teacher must have the same number of columns");
  }
  if (teacher_rows.shape(0) != rows || labels.shape(0) != rows || weights.shape(0) != rows ||
      weights.shape(1) != 3 || terms.shape(0) != rows || terms.shape(1) != 4) {
    throw std::invalid_argument("teacher_rows, labels, weights and terms need one entry per row");
  }
  for (size_t i = 0; i < rows; i++) {
    const int64_t row = teacher_rows.data()[i], label = labels.data()[i];
    if (row < 0 || row >= static_cast<int64_t>(teacher.shape(0)) || label < -1 ||
        label >= static_cast<int64_t>(size)) {
      throw std::invalid_argument("row " + std::to_string(i) + " has teacher row " +
                                  std::to_string(row) + " and label " + std::to_string(label) +
                                  ", of which one is out of range");
    }
  }
}

void block_loss(Machine& machine, const Array<int16_t, 2>& logits,
                const Array<const int16_t, 2>& teacher,
                const Array<const int64_t, 1>& teacher_rows, const Array<const int64_t, 1>& labels,
                const Array<const float, 2>& weights, const Array<float, 2>& terms) {
  check(logits, teacher, teacher_rows, labels, weights, terms);
  nb::gil_scoped_release unlocked;
  const std::lock_guard<std::mutex> lock(machine.mutex);
  const auto size = static_cast<int64_t>(logits.shape(1));
  const LossKernels& kernels = kernels_of(machine.isa);
  std::vector<float> scratch(static_cast<size_t>(machine.pool->size() * size));
  machine.pool->parallel_for(
      static_cast<int64_t>(logits.shape(0)), [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; i++) {
          const float* weight = weights.data() + 3 * i;
          const LossRow row{
              reinterpret_cast<uint16_t*>(logits.data()) + i * size,
              reinterpret_cast<const uint16_t*>(teacher.data()) + teacher_rows.data()[i] * size,
              size,
              labels.data()[i],
              weight[0],
              weight[1],
              weight[2]};
          const LossTerms found = kernels.loss(row, scratch.data() + worker * size);
          const float values[] = {found.ce, found.l1, found.overlap, found.soft_ce};
          std::copy(values, values + 4, terms.data() + 4 * i);
        }
      });
}

void softmax(Machine& machine, const Array<int16_t, 2>& logits,
             const Array<const float, 1>& log_rest) {
  const size_t rows = logits.shape(0);
  check_size(logits.shape(1));
  if (log_rest.shape(0) != rows) throw std::invalid_argument("log_rest needs one entry per row");
  nb::gil_scoped_release unlocked;
  const std::lock_guard<std::mutex> lock(machine.mutex);
  const auto size = static_cast<int64_t>(logits.shape(1));
  const LossKernels& kernels = kernels_of(machine.isa);
  std::vector<float> scratch(static_cast<size_t>(machine.pool->size() * size));
  machine.pool->parallel_for(
      static_cast<int64_t>(rows), [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; i++) {
          kernels.softmax(reinterpret_cast<uint16_t*>(logits.data()) + i * size, size,
                          log_rest.data()[i], scratch.data() + worker * size);
        }
      });
}

void log_sum_exp(Machine& machine, const Array<const int16_t, 2>& logits,
                 const Array<float, 1>& result) {
  const size_t rows = logits.shape(0);
  check_size(logits.shape(1));
  if (result.shape(0) != rows) throw std::invalid_argument("result needs one entry per row");
  nb::gil_scoped_release unlocked;
  const std::lock_guard<std::mutex> lock(machine.mutex);
  const auto size = static_cast<int64_t>(logits.shape(1));
  const LossKernels& kernels = kernels_of(machine.isa);
  machine.pool->parallel_for(static_cast<int64_t>(rows), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      result.data()[i] = kernels.log_sum_exp(
          reinterpret_cast<const uint16_t*>(logits.data()) + i * size, size);
    }
  });
}

}  // namespace

void bind_training(nb::module_& module) {
  module.def("block_loss", &block_loss, nb::arg("machine"), nb::arg("logits").noconvert(),
             nb::arg("teacher").noconvert(), nb::arg("teacher_rows").noconvert(),
             nb::arg("labels").noconvert(), nb::arg("weights").noconvert(),
             nb::arg("terms").noconvert());
  module.def("softmax_rows", &softmax, nb::arg("machine"), nb::arg("logits").noconvert(),
             nb::arg("log_rest").noconvert());
  module.def("log_sum_exp_rows", &log_sum_exp, nb::arg("machine"), nb::arg("logits").noconvert(),
             nb::arg("result").noconvert());
}

}  // namespace outrider
