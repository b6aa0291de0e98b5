#include "gemm.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "gemm_kernels.h"

namespace outrider {

namespace {

// Rows whose rounded form stays in a core's second-level cache beside a weight tile.
constexpr int64_t kWindowRows = 64;
constexpr size_t kPrefetchBytes = 4096;

}  // namespace

struct Gemm::Scratch {
  const GemmKernels* kernels = nullptr;
  std::vector<int8_t> codes;
  std::vector<float> floats;
  std::vector<int32_t> ints;
  std::vector<RowGroup> groups;
  std::vector<RowTarget> targets;

  void place_groups(int64_t in_features, int64_t rows);
};

namespace {

// What one parallel region computes: first the rounding of the rows, in which every thread that
// joins takes part, then tiles of all matrices, counted through. All threads read it for every
// tile: it must not share a cache line with what the caller keeps beside it on its stack.
struct alignas(128) Region {
  const Product* products;
  size_t count;
  const GemmKernels* kernels;
  const std::vector<RowGroup>* groups;
  const std::vector<RowTarget>* targets;
  const float* x;  // of the first row of the window
  int64_t ldx;
  int64_t first_row;
  int64_t window;           // rows
  int64_t pieces_to_round;  // 0 if no matrix needs rounded rows
  alignas(128) mutable std::atomic<int64_t> next_piece{0};
  mutable std::atomic<int64_t> rounded{0};

  // A piece is all rows of a group at neighbouring blocks: rows of one group share cache lines, so
  // two threads must not write different rows of it at the same place.
  static int64_t piece_blocks(int64_t rows) { return rows < kGroupRows ? 32 : 8; }

  static int64_t pieces_per_group(int64_t blocks, int64_t rows) {
    return (blocks + piece_blocks(rows) - 1) / piece_blocks(rows);
  }

  void round_piece(int64_t piece) const {
    const int64_t blocks = products[0].weight->in_features() / kBlockInputs;
    const int64_t per_group = pieces_per_group(blocks, window);
    const RowTarget& target = (*targets)[static_cast<size_t>(piece / per_group)];
    const int64_t size = piece_blocks(window);
    const int64_t begin = piece % per_group * size;
    const int64_t end = std::min(blocks, begin + size);
    const float* row_x = x + piece / per_group * kGroupRows * ldx;
    for (int row = 0; row < target.rows; ++row, row_x += ldx) {
      kernels->quantize(row_x, begin, end, row, target);
    }
  }

  void round_rows() const {
    if (rounded.load(std::memory_order_acquire) == pieces_to_round) return;
    for (int64_t piece; (piece = next_piece.fetch_add(1)) < pieces_to_round;) {
      round_piece(piece);
      rounded.fetch_add(1, std::memory_order_release);
    }
    wait_until([this] { return rounded.load(std::memory_order_acquire) == pieces_to_round; });
  }

  void run_tile(const Product& product, int64_t tile) const {
    const PackedMatrix& weight = *product.weight;
    TileCall call;
    call.tile = weight.tile(tile);
    call.in_features = weight.in_features();
    call.ld = product.ld;
    call.accumulate = product.accumulate;
    const int64_t output = tile * kTileOutputs;
    call.outputs = static_cast<int>(std::min(kTileOutputs, weight.out_features() - output));
    const size_t passes = groups->size();
    const TileLayout layout = tile_layout(weight.type());
    // With several passes over a tile, each fetches its part of the next tile; one pass
    // runs a fixed distance ahead of itself.
    const bool once = passes == 1;
    call.prefetch_step = layout.chunk_bytes() / passes;
    float* y = product.y + first_row * product.ld + output;
    for (size_t pass = 0; pass < passes; ++pass) {
      call.group = (*groups)[pass];
      call.y = y;
      call.prefetch =
          call.tile +
          (once ? kPrefetchBytes : weight.tile_bytes() + pass * weight.tile_bytes() / passes);
      kernels->tile[static_cast<int>(weight.type())][call.group.rows - 1](call);
      y += call.group.rows * product.ld;
    }
  }

  void operator()(int64_t begin, int64_t end, int) const {
    round_rows();
    int64_t first = 0;
    for (size_t i = 0; i < count && first < end; ++i) {
      const int64_t tiles = products[i].weight->tiles();
      const int64_t from = std::max(begin, first);
      const int64_t to = std::min(end, first + tiles);
      for (int64_t tile = from; tile < to; ++tile) run_tile(products[i], tile - first);
      first += tiles;
    }
  }
};

void check(const Product* products, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (products[i].weight->in_features() != products[0].weight->in_features()) {
      throw std::invalid_argument("matrices of one product have " +
                                  std::to_string(products[0].weight->in_features()) + " and " +
                                  std::to_string(products[i].weight->in_features()) +
                                  " inputs; they must share their input");
    }
  }
}

}  // namespace

// Lays out the groups for that many rows in the scratch arrays, which only ever grow.
void Gemm::Scratch::place_groups(int64_t in_features, int64_t rows) {
  const size_t entries = static_cast<size_t>(rows * (in_features / kBlockInputs));
  if (floats.size() < 2 * entries) {
    codes.resize(entries * kBlockInputs);
    floats.resize(2 * entries);
    ints.resize(3 * entries);
  }
  groups.clear();
  targets.clear();
  size_t entry = 0;
  for (int64_t row = 0; row < rows; row += kGroupRows) {
    RowTarget target;
    target.rows = static_cast<int>(std::min<int64_t>(kGroupRows, rows - row));
    target.codes = codes.data() + entry * kBlockInputs;
    target.scales = floats.data() + entry;
    target.sums = floats.data() + entries + entry;
    target.negated = ints.data() + entry;
    target.negated_halves = ints.data() + entries + 2 * entry;
    RowGroup group;
    group.rows = target.rows;
    group.codes = target.codes;
    group.scales = target.scales;
    group.sums = target.sums;
    group.negated = target.negated;
    group.negated_halves = target.negated_halves;
    targets.push_back(target);
    groups.push_back(group);
    entry += static_cast<size_t>(target.rows * (in_features / kBlockInputs));
  }
}

Gemm::Gemm(ThreadPool& pool, Isa isa)
    : pool_(pool), isa_(isa), scratch_(std::make_unique<Scratch>()) {
  scratch_->kernels = gemm_kernels(isa);
  if (scratch_->kernels == nullptr) {
    throw std::invalid_argument(std::string("this build has no kernels for ") + isa_name(isa));
  }
}

Gemm::~Gemm() = default;

void Gemm::matmul(const Product* products, size_t count, const float* x, int64_t ldx,
                  int64_t rows) {
  if (count == 0 || rows == 0) return;
  check(products, count);
  const int64_t in_features = products[0].weight->in_features();
  int64_t tiles = 0;
  bool any_quantized = false;
  for (size_t i = 0; i < count; ++i) {
    tiles += products[i].weight->tiles();
    any_quantized |= !is_float(products[i].weight->type());
  }
  for (int64_t first = 0; first < rows; first += kWindowRows) {
    const int64_t window = std::min(kWindowRows, rows - first);
    const float* window_x = x + first * ldx;
    scratch_->place_groups(in_features, window);
    for (size_t i = 0; i < scratch_->groups.size(); ++i) {
      scratch_->groups[i].plain = window_x + static_cast<int64_t>(i) * kGroupRows * ldx;
      scratch_->groups[i].plain_stride = ldx;
    }
    const int64_t pieces = static_cast<int64_t>(scratch_->groups.size()) *
                           Region::pieces_per_group(in_features / kBlockInputs, window);
    const Region region{products,
                        count,
                        scratch_->kernels,
                        &scratch_->groups,
                        &scratch_->targets,
                        window_x,
                        ldx,
                        first,
                        window,
                        any_quantized ? pieces : 0};
    pool_.parallel_for(tiles, region);
  }
}

}  // namespace outrider
