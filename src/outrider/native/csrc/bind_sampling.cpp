#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "module.h"

namespace outrider {

void check_ids(const WarpRule& rule, int64_t vocab_size) {
  const auto check = [vocab_size](int64_t token) {
    if (token < 0 || token >= vocab_size) {
      throw std::invalid_argument("token " + std::to_string(token) + " is outside 0 to " +
                                  std::to_string(vocab_size - 1));
    }
  };
  if (rule.allowed) {
    for (const int32_t token : *rule.allowed) check(token);
  }
  if (!rule.mask.empty() && static_cast<int64_t>(rule.mask.size()) * 8 < vocab_size) {
    throw std::invalid_argument("a mask of " + std::to_string(rule.mask.size()) +
                                " bytes is too short for " + std::to_string(vocab_size) + " tokens");
  }
  for (const auto& [token, value] : rule.bias) check(token);
  for (const int32_t token : rule.held_back) check(token);
  for (const int32_t token : rule.seen) check(token);
  for (const auto& [token, value] : rule.penalty) check(token);
}

namespace {

std::vector<int64_t> sample(Machine& machine, const Rows& logits, const std::vector<int64_t>& rows,
                            const std::vector<const WarpRule*>& rules,
                            const std::vector<uint64_t>& seeds,
                            const std::vector<int64_t>& positions) {
  const size_t count = rows.size();
  if (rules.size() != count || seeds.size() != count || positions.size() != count) {
    throw std::invalid_argument("rules, seeds and positions must have one entry per row");
  }
  const auto num_rows = static_cast<int64_t>(logits.shape(0));
  for (const int64_t row : rows) {
    if (row < 0 || row >= num_rows) {
      throw std::invalid_argument("row " + std::to_string(row) + " is outside 0 to " +
                                  std::to_string(num_rows - 1));
    }
  }
  const auto vocab_size = static_cast<int64_t>(logits.shape(1));
  for (const WarpRule* rule : rules) check_ids(*rule, vocab_size);
  std::vector<int64_t> tokens(count);
  nb::gil_scoped_release unlocked;
  const std::lock_guard<std::mutex> lock(machine.mutex);
  machine.sampler.sample(logits.data(), vocab_size, vocab_size, rows.data(), rules,
                         seeds.data(), positions.data(), tokens.data());
  return tokens;
}

}  // namespace

void bind_sampling(nb::module_& module) {
  nb::class_<WarpRule>(module, "WarpRule")
      .def(nb::init<>())
      .def_rw("temperature", &WarpRule::temperature)
      .def_rw("top_k", &WarpRule::top_k)
      .def_rw("top_p", &WarpRule::top_p)
      .def_rw("log_min_p", &WarpRule::log_min_p, nb::arg().none())
      .def_rw("repetition_penalty", &WarpRule::repetition_penalty)
      .def_rw("allowed", &WarpRule::allowed, nb::arg().none())
      .def_prop_rw(
          "mask",
          [](const WarpRule& rule) { return nb::bytes(rule.mask.data(), rule.mask.size()); },
          [](WarpRule& rule, const nb::bytes& mask) { rule.mask.assign(mask.c_str(), mask.size()); })
      .def_rw("bias", &WarpRule::bias)
      .def_rw("held_back", &WarpRule::held_back)
      .def_rw("seen", &WarpRule::seen)
      .def_rw("penalty", &WarpRule::penalty);
  module.def("sample", &sample, nb::arg("machine"), nb::arg("logits"), nb::arg("rows"),
             nb::arg("rules"), nb::arg("seeds"), nb::arg("positions"));
  module.attr("NOT_NUMBERS") = kNotNumbers;
  module.attr("NONE_LEFT") = kNoneLeft;
}

}  // namespace outrider
