#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "decoder.h"
#include "module.h"

namespace outrider {

namespace {

using Blocks = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_bytes(WeightType type, const Blocks& blocks, int64_t in_features) {
  const size_t expected = file_bytes(type, static_cast<int64_t>(blocks.shape(0)), in_features);
  if (blocks.size() != expected) {
    throw std::invalid_argument(std::string("a matrix of ") + std::to_string(blocks.shape(0)) +
                                " x " + std::to_string(in_features) + " in " +
                                weight_type_name(type) + " takes " + std::to_string(expected) +
                                " bytes, not " + std::to_string(blocks.size()));
  }
}

PackedMatrix pack_blocks(const std::string& kind, const Blocks& blocks, int64_t in_features) {
  const WeightType type = weight_type_from_name(kind);
  check_bytes(type, blocks, in_features);
  nb::gil_scoped_release unlocked;
  return pack(type, blocks.data(), static_cast<int64_t>(blocks.shape(0)), in_features);
}

PackedMatrix quantize_blocks(const std::string& target, const std::string& source,
                             const Blocks& values, int64_t in_features) {
  const WeightType from = weight_type_from_name(source), to = weight_type_from_name(target);
  check_bytes(from, values, in_features);
  nb::gil_scoped_release unlocked;
  return quantize(to, from, values.data(), static_cast<int64_t>(values.shape(0)), in_features);
}

NumpyRows dequantised(const PackedMatrix& matrix) {
  const int64_t rows = matrix.out_features(), columns = matrix.in_features();
  auto lease = std::make_shared<Buffers>()->lease(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; row++) {
    dequantize_row(matrix, row, lease->data() + row * columns);
  }
  return as_numpy(std::move(lease), static_cast<size_t>(rows), static_cast<size_t>(columns));
}

PackedMatrix selected(const PackedMatrix& matrix, const std::vector<int64_t>& rows) {
  for (const int64_t row : rows) {
    if (row < 0 || row >= matrix.out_features()) {
      throw std::invalid_argument("row " + std::to_string(row) + " is outside 0 to " +
                                  std::to_string(matrix.out_features() - 1));
    }
  }
  return select_rows(matrix, rows.data(), static_cast<int64_t>(rows.size()));
}

// The sizes are checked where a `ModelSpec` is made.
Shape shape_of(const nb::dict& fields) {
  const auto number = [&fields](const char* name) { return nb::cast<int64_t>(fields[name]); };
  const auto flag = [&fields](const char* name) { return nb::cast<bool>(fields[name]); };
  Shape shape{};
  shape.vocab_size = number("vocab_size");
  shape.hidden_size = number("hidden_size");
  shape.num_layers = static_cast<int>(number("num_layers"));
  shape.num_heads = static_cast<int>(number("num_heads"));
  shape.num_kv_heads = static_cast<int>(number("num_kv_heads"));
  shape.head_dim = static_cast<int>(number("head_dim"));
  shape.intermediate_size = number("intermediate_size");
  shape.norm_eps = nb::cast<float>(fields["norm_eps"]);
  shape.has_qkv_bias = flag("qkv_bias");
  shape.has_head_norms = flag("qk_norm");
  shape.is_head_tied = flag("tied_head");
  return shape;
}

}  // namespace

void bind_weights(nb::module_& module) {
  nb::class_<PackedMatrix>(module, "Matrix")
      .def_static("pack", &pack_blocks, nb::arg("kind"), nb::arg("blocks"), nb::arg("in_features"))
      .def_static("quantize", &quantize_blocks, nb::arg("target"), nb::arg("source"),
                  nb::arg("values"), nb::arg("in_features"))
      .def("select_rows", &selected, nb::arg("rows"))
      .def("dequantised", &dequantised)
      .def_prop_ro("kind", [](const PackedMatrix& m) { return weight_type_name(m.type()); })
      .def_prop_ro("out_features", &PackedMatrix::out_features)
      .def_prop_ro("in_features", &PackedMatrix::in_features)
      .def_prop_ro("bytes", &PackedMatrix::bytes);

  nb::class_<Weights>(module, "Weights")
      .def(nb::new_(
          [](const nb::kwargs& fields) { return std::make_shared<Weights>(shape_of(fields)); }))
      .def("set_matrix", &Weights::set_matrix, nb::arg("layer"), nb::arg("name"), nb::arg("matrix"))
      .def("set_vector", &Weights::set_vector, nb::arg("layer"), nb::arg("name"), nb::arg("values"))
      .def("check_complete", &Weights::check_complete)
      .def_prop_ro("embedding", &Weights::embedding)
      .def_prop_ro("head", &Weights::head)
      .def_prop_ro("bytes", &Weights::bytes);
}

}  // namespace outrider
