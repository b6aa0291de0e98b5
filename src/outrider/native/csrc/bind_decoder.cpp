#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>

#include "decoder.h"
#include "module.h"

namespace outrider {

void check_table(const KvCache& cache, int64_t end, const std::vector<int32_t>& table) {
  const int64_t needed = (end + cache.block_size() - 1) / cache.block_size();
  if (static_cast<int64_t>(table.size()) < needed) {
    throw std::invalid_argument("a block table has " + std::to_string(table.size()) +
                                " blocks, but the span reaches into " + std::to_string(needed));
  }
  for (int64_t i = 0; i < needed; i++) {
    if (table[i] < 0 || table[i] >= cache.num_blocks()) {
      throw std::invalid_argument("block " + std::to_string(table[i]) + " is outside 0 to " +
                                  std::to_string(cache.num_blocks() - 1));
    }
  }
}

Decoder new_decoder(const Machine& machine, const std::shared_ptr<Weights>& weights,
                    std::vector<float> frequencies, float attention_factor, int64_t num_blocks,
                    int block_size, const std::string& kv_type) {
  const Shape& shape = weights->shape();
  if (static_cast<int>(frequencies.size()) * 2 != shape.head_dim) {
    throw std::invalid_argument(std::to_string(frequencies.size()) +
                                " rotary frequencies do not fit a head of " +
                                std::to_string(shape.head_dim));
  }
  if (kv_type != "int16" && kv_type != "float32") {
    throw std::invalid_argument("kv_type is '" + kv_type + "', but it must be int16 or float32");
  }
  auto cache =
      std::make_unique<KvCache>(shape.num_layers, shape.num_kv_heads, shape.head_dim, num_blocks,
                                block_size, kv_type == "int16" ? KvType::int16 : KvType::float32);
  return Decoder(weights, machine.pool, machine.isa,
                 Rotary(std::move(frequencies), attention_factor), std::move(cache));
}

namespace {

// Tokens, cached length, block table, how many of the last tokens are judged.
using PySpan = std::tuple<std::vector<int64_t>, int64_t, std::vector<int32_t>, int64_t>;

// A decoder with what Python shares between decoders.
struct Runner {
  std::shared_ptr<Machine> machine;
  Decoder decoder;
  std::vector<float> hidden, judged;  // Scratch of a forward.
};

// A window with the memory it points into.
struct OwnedWindow {
  Window window;
  std::vector<int64_t> tokens;
  std::vector<int64_t> judged;  // Rows.
};

void check_span(const Runner& runner, const PySpan& span, int64_t length) {
  const auto& [tokens, kv_len, table, num_judged] = span;
  if (length < 1 || kv_len < 0 || num_judged < 0 || num_judged > length) {
    throw std::invalid_argument(
        "a span has " + std::to_string(length) + " rows, " + std::to_string(num_judged) +
        " of them judged, after " + std::to_string(kv_len) +
        " cached positions; it needs at least one row, and no more judged than rows");
  }
  check_table(runner.decoder.cache(), kv_len + length, table);
}

void check_rows(const Runner& runner, size_t columns, const char* what) {
  const auto size = static_cast<size_t>(runner.decoder.shape().hidden_size);
  if (columns != size) {
    throw std::invalid_argument(std::string(what) + " have " + std::to_string(columns) +
                                " columns, but the model has " + std::to_string(size));
  }
}

// `inputs` stand in for tokens; each span still says by its tokens how many rows it has.
void flatten(const Runner& runner, const std::vector<PySpan>& spans, bool is_causal,
             OwnedWindow& owned) {
  for (const PySpan& span : spans) {
    const auto& [tokens, kv_len, table, num_judged] = span;
    const auto length = static_cast<int64_t>(tokens.size());
    check_span(runner, span, length);
    const int64_t first = owned.window.num_rows;
    owned.window.spans.push_back(
        {first, static_cast<int>(length), kv_len, table.data(), is_causal});
    owned.window.num_rows += length;
    owned.tokens.insert(owned.tokens.end(), tokens.begin(), tokens.end());
    for (int64_t i = length - num_judged; i < length; i++) owned.judged.push_back(first + i);
  }
  owned.window.tokens = owned.tokens.data();
}

void check_tokens(const Runner& runner, const OwnedWindow& owned) {
  for (const int64_t token : owned.tokens) {
    if (token < 0 || token >= runner.decoder.shape().vocab_size) {
      throw std::invalid_argument("token " + std::to_string(token) + " is outside 0 to " +
                                  std::to_string(runner.decoder.shape().vocab_size - 1));
    }
  }
}

void check_taps(const Runner& runner, const std::vector<int>& taps) {
  for (const int tap : taps) {
    if (tap < -1 || tap >= runner.decoder.shape().num_layers) {
      throw std::invalid_argument("tap " + std::to_string(tap) + " is outside -1 to " +
                                  std::to_string(runner.decoder.shape().num_layers - 1));
    }
  }
}

struct Result {
  nb::object logits = nb::none(), features = nb::none(), normed = nb::none();
  std::vector<int64_t> ids;
};

using Lease = std::unique_ptr<Buffers::Lease>;

Result forward(Runner& runner, const std::vector<PySpan>& spans, std::vector<int> taps,
               const std::string& want, bool is_causal, std::optional<Rows> inputs) {
  OwnedWindow owned;
  flatten(runner, spans, is_causal, owned);
  check_taps(runner, taps);
  if (inputs) {
    check_rows(runner, inputs->shape(1), "inputs");
    if (static_cast<int64_t>(inputs->shape(0)) != owned.window.num_rows) {
      throw std::invalid_argument("inputs must have one row per token of the spans");
    }
    owned.window.inputs = inputs->data();
  } else {
    check_tokens(runner, owned);
  }
  owned.window.taps = std::move(taps);
  const Shape& shape = runner.decoder.shape();
  Buffers& buffers = *runner.machine->buffers;
  const int64_t size = shape.hidden_size, rows = owned.window.num_rows;
  const auto num_judged = static_cast<int64_t>(owned.judged.size());
  const auto width = size * static_cast<int64_t>(owned.window.taps.size());
  const bool wants_ids = want == "ids";
  Lease features = width ? buffers.lease(rows * width) : nullptr;
  Lease normed = buffers.lease(num_judged * size);
  Lease logits = want != "hidden" ? buffers.lease(num_judged * shape.vocab_size) : nullptr;
  Result result;
  {
    nb::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> lock(runner.machine->mutex);
    runner.hidden.resize(rows * size);
    runner.decoder.forward(owned.window, runner.hidden.data(),
                           features ? features->data() : nullptr);
    for (int64_t i = 0; i < num_judged; i++) {
      std::memcpy(normed->data() + i * size, runner.hidden.data() + owned.judged[i] * size,
                  sizeof(float) * size);
    }
    if (num_judged) runner.decoder.norm(normed->data(), num_judged, normed->data());
    if (num_judged && logits) {
      runner.decoder.logits(normed->data(), num_judged, logits->data());
    }
    if (wants_ids) {
      result.ids.resize(num_judged);
      runner.judged.resize(num_judged);
      runner.machine->sampler.largest(logits->data(), shape.vocab_size, shape.vocab_size,
                                      num_judged, result.ids.data(), runner.judged.data());
    }
  }
  if (features) result.features = nb::cast(as_numpy(std::move(features), rows, width));
  if (want == "logits") {
    result.logits = nb::cast(as_numpy(std::move(logits), num_judged, shape.vocab_size));
  } else if (want == "hidden") {
    result.normed = nb::cast(as_numpy(std::move(normed), num_judged, size));
  }
  return result;
}

void write_context(Runner& runner, const std::vector<PySpan>& spans, const Rows& rows) {
  OwnedWindow owned;
  flatten(runner, spans, true, owned);
  check_rows(runner, rows.shape(1), "context rows");
  if (static_cast<int64_t>(rows.shape(0)) != owned.window.num_rows) {
    throw std::invalid_argument("context rows must be one per token of the spans");
  }
  nb::gil_scoped_release unlocked;
  const std::lock_guard<std::mutex> lock(runner.machine->mutex);
  runner.decoder.write_context(owned.window.spans, rows.data(), owned.window.num_rows);
}

NumpyRows head(Runner& runner, const Rows& normed, const PackedMatrix* part) {
  check_rows(runner, normed.shape(1), "rows");
  if (part && part->in_features() != runner.decoder.shape().hidden_size) {
    throw std::invalid_argument("the part of the head does not fit the hidden size");
  }
  const int64_t columns = part ? part->out_features() : runner.decoder.shape().vocab_size;
  const auto rows = static_cast<int64_t>(normed.shape(0));
  Lease logits = runner.machine->buffers->lease(rows * columns);
  {
    nb::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> lock(runner.machine->mutex);
    if (rows) runner.decoder.logits(normed.data(), rows, logits->data(), part);
  }
  return as_numpy(std::move(logits), rows, columns);
}

std::shared_ptr<Runner> new_runner(const std::shared_ptr<Machine>& machine,
                                   const std::shared_ptr<Weights>& weights,
                                   std::vector<float> frequencies, float attention_factor,
                                   int64_t num_blocks, int block_size, const std::string& kv_type) {
  return std::shared_ptr<Runner>(
      new Runner{machine,
                 new_decoder(*machine, weights, std::move(frequencies), attention_factor,
                             num_blocks, block_size, kv_type),
                 {},
                 {}});
}

}  // namespace

void bind_decoder(nb::module_& module) {
  nb::class_<Result>(module, "Result")
      .def_ro("logits", &Result::logits)
      .def_ro("features", &Result::features)
      .def_ro("normed", &Result::normed)
      .def_ro("ids", &Result::ids);
  nb::class_<Runner>(module, "Decoder")
      .def(nb::new_(&new_runner), nb::arg("machine"), nb::arg("weights"), nb::arg("frequencies"),
           nb::arg("attention_factor"), nb::arg("num_blocks"), nb::arg("block_size"),
           nb::arg("kv_type"))
      .def("forward", &forward, nb::arg("spans"), nb::arg("taps"), nb::arg("want"),
           nb::arg("is_causal") = true, nb::arg("inputs") = nb::none())
      .def("write_context", &write_context, nb::arg("spans"), nb::arg("rows"))
      .def("head", &head, nb::arg("normed"), nb::arg("part") = nb::none())
      .def_prop_ro("kv_bytes", [](const Runner& self) { return self.decoder.cache().bytes(); });
}

}  // namespace outrider
