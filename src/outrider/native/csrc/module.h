// The Python module: what is bound in which file, and what the bindings share.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "buffers.h"
#include "cpu.h"
#include "decoder.h"
#include "sample.h"
#include "threads.h"

namespace outrider {

// The threads and the instruction set that models share; one call at a time.
struct Machine {
  Machine(int threads, Isa level)
      : pool(std::make_shared<ThreadPool>(threads)),
        isa(level),
        sampler(*pool, level),
        buffers(std::make_shared<Buffers>()) {}

  std::shared_ptr<ThreadPool> pool;
  Isa isa;
  Sampler sampler;
  std::shared_ptr<Buffers> buffers;
  std::mutex mutex;
};

namespace nb = nanobind;

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using NumpyRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// A numpy array over leased memory, which goes back when Python lets go.
NumpyRows as_numpy(std::unique_ptr<Buffers::Lease> lease, size_t rows, size_t columns);

// Throws std::invalid_argument unless the table reaches `end` positions with blocks of the cache.
void check_table(const KvCache& cache, int64_t end, const std::vector<int32_t>& table);
// Throws std::invalid_argument if a rule names a token outside the vocabulary.
void check_ids(const WarpRule& rule, int64_t vocab_size);

// A decoder with a cache of its own; `kv_type` is int16 or float32. Throws std::invalid_argument.
Decoder new_decoder(const Machine& machine, const std::shared_ptr<Weights>& weights,
                    std::vector<float> frequencies, float attention_factor, int64_t num_blocks,
                    int block_size, const std::string& kv_type);

void bind_weights(nb::module_& module);
void bind_decoder(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_training(nb::module_& module);
void bind_block(nb::module_& module);
void bind_drafts(nb::module_& module);

}  // namespace outrider
