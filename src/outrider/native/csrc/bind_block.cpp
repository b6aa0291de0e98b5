#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "block_drafter.h"
#include "module.h"

namespace outrider {

namespace {

// Cached length, number of new positions, block table.
using PyContext = std::tuple<int64_t, int64_t, std::vector<int32_t>>;
// Anchor, cached length, block table, number of drafts, rule.
using PyRow = std::tuple<int64_t, int64_t, std::vector<int32_t>, int, const DraftRule*>;

struct BlockRunner {
  std::shared_ptr<Machine> machine;
  BlockDrafter drafter;
};

std::vector<Span> context_spans(const BlockDrafter& drafter, const std::vector<PyContext>& contexts,
                                const Rows& features) {
  std::vector<Span> spans;
  int64_t rows = 0;
  for (const auto& [kv_len, length, table] : contexts) {
    if (kv_len < 0 || length < 1) throw std::invalid_argument("a context span has no positions");
    check_table(drafter.decoder().cache(), kv_len + length, table);
    spans.push_back({rows, static_cast<int>(length), kv_len, table.data(), true});
    rows += length;
  }
  const auto width = static_cast<size_t>(drafter.parts().fuse.in_features());
  if (static_cast<int64_t>(features.shape(0)) != rows || (rows && features.shape(1) != width)) {
    throw std::invalid_argument("features are " + std::to_string(features.shape(0)) + " x " +
                                std::to_string(features.shape(1)) + ", but the spans need " +
                                std::to_string(rows) + " x " + std::to_string(width));
  }
  return spans;
}

void check_rule(const DraftRule& rule, int num_drafts, int64_t vocab_size) {
  if (rule.draws() && static_cast<int>(rule.uniforms.size()) < num_drafts) {
    throw std::invalid_argument("a rule that draws needs a number per draft token");
  }
  check_ids(rule.warp, vocab_size);
}

std::vector<BlockRow> block_rows(const BlockDrafter& drafter, const std::vector<PyRow>& listed) {
  std::vector<BlockRow> rows;
  const int64_t vocab_size = drafter.decoder().shape().vocab_size;
  for (const auto& [anchor, kv_len, table, num_drafts, rule] : listed) {
    if (anchor < 0 || anchor >= vocab_size || kv_len < 0) {
      throw std::invalid_argument("anchor " + std::to_string(anchor) + " at position " +
                                  std::to_string(kv_len) + " is outside the vocabulary or text");
    }
    if (num_drafts < 1 || num_drafts > drafter.parts().slots()) {
      throw std::invalid_argument(std::to_string(num_drafts) + " drafts are outside 1 to " +
                                  std::to_string(drafter.parts().slots()));
    }
    check_table(drafter.decoder().cache(), kv_len + drafter.parts().block_size, table);
    check_rule(*rule, num_drafts, vocab_size);
    rows.push_back({anchor, kv_len, table.data(), num_drafts, rule});
  }
  return rows;
}

std::vector<BlockDraft> draft(BlockRunner& runner, const std::vector<PyContext>& contexts,
                              const Rows& features, const std::vector<PyRow>& listed) {
  const std::vector<Span> spans = context_spans(runner.drafter, contexts, features);
  const std::vector<BlockRow> rows = block_rows(runner.drafter, listed);
  nb::gil_scoped_release unlocked;
  const std::lock_guard<std::mutex> lock(runner.machine->mutex);
  if (!spans.empty()) {
    runner.drafter.write_context(spans, features.data(), static_cast<int64_t>(features.shape(0)));
  }
  return rows.empty() ? std::vector<BlockDraft>() : runner.drafter.draft(rows);
}

RowTable table_of(const Rows& rows) {
  return RowTable(rows.data(), rows.size(), static_cast<int64_t>(rows.shape(0)),
                  static_cast<int>(rows.shape(1)));
}

std::shared_ptr<BlockRunner> new_runner(const std::shared_ptr<Machine>& machine,
                                        const std::shared_ptr<Weights>& weights,
                                        const BlockParts& parts, std::vector<float> frequencies,
                                        float attention_factor, int64_t num_blocks, int block_size,
                                        const std::string& kv_type) {
  std::unique_ptr<Decoder> decoder(new Decoder(
      new_decoder(*machine, weights, std::move(frequencies), attention_factor, num_blocks,
                  block_size, kv_type)));
  return std::shared_ptr<BlockRunner>(
      new BlockRunner{machine, BlockDrafter(std::move(decoder), parts, machine->isa)});
}

}  // namespace

void bind_block(nb::module_& module) {
  nb::class_<DraftRule>(module, "DraftRule")
      .def(nb::init<>())
      .def_rw("warp", &DraftRule::warp)
      .def_rw("presence_penalty", &DraftRule::presence_penalty)
      .def_rw("frequency_penalty", &DraftRule::frequency_penalty)
      .def_rw("num_held", &DraftRule::num_held)
      .def_rw("seed", &DraftRule::seed)
      .def_rw("position", &DraftRule::position)
      .def_rw("uniforms", &DraftRule::uniforms);
  nb::class_<BlockDraft>(module, "BlockDraft")
      .def_ro("tokens", &BlockDraft::tokens)
      .def_ro("confidence", &BlockDraft::confidence)
      .def_ro("ids", &BlockDraft::ids)
      .def_ro("probs", &BlockDraft::probs);
  nb::class_<BlockParts>(module, "BlockParts")
      .def(nb::init<>())
      .def_rw("block_size", &BlockParts::block_size)
      .def_rw("is_anchor_first", &BlockParts::is_anchor_first)
      .def_rw("mask_token", &BlockParts::mask_token)
      .def_rw("num_candidates", &BlockParts::num_candidates)
      .def_rw("norms_features", &BlockParts::norms_features)
      .def_rw("fuse", &BlockParts::fuse)
      .def_rw("fused_norm", &BlockParts::fused_norm)
      .def_rw("head", &BlockParts::head)
      .def_rw("vocabulary", &BlockParts::vocabulary)
      .def("set_markov",
           [](BlockParts& self, const std::string& type, const Rows& before, const Rows& after) {
             self.markov.type = markov_type_from_name(type);
             self.markov.before = table_of(before);
             self.markov.after = table_of(after);
           })
      .def("set_markov_mix",
           [](BlockParts& self, const Rows& mix, std::vector<float> bias) {
             self.markov.mix = table_of(mix);
             self.markov.mix_bias = std::move(bias);
           })
      .def("set_confidence", [](BlockParts& self, std::vector<float> weight, float bias,
                                bool sees_token) {
        self.confidence = {std::move(weight), bias, sees_token};
      });
  nb::class_<BlockRunner>(module, "BlockRunner")
      .def(nb::new_(&new_runner), nb::arg("machine"), nb::arg("weights"), nb::arg("parts"),
           nb::arg("frequencies"), nb::arg("attention_factor"), nb::arg("num_blocks"),
           nb::arg("block_size"), nb::arg("kv_type"))
      .def("draft", &draft, nb::arg("contexts"), nb::arg("features"), nb::arg("rows"));
}

}  // namespace outrider
