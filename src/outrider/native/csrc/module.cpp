#include "module.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

namespace outrider {

NumpyRows as_numpy(std::unique_ptr<Buffers::Lease> lease, size_t rows, size_t columns) {
  float* data = lease->data();
  nb::capsule owner(lease.release(),
                    [](void* held) noexcept { delete static_cast<Buffers::Lease*>(held); });
  return NumpyRows(data, {rows, columns}, owner);
}

namespace {

std::shared_ptr<Machine> new_machine(int threads, const std::string& isa) {
  if (threads < 1 || threads > 1024) {
    throw std::invalid_argument("threads is " + std::to_string(threads) +
                                ", but it must be 1 to 1024");
  }
  return std::make_shared<Machine>(threads, isa_from_name(isa));
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const Isa isa : available_isas()) names.emplace_back(isa_name(isa));
  return names;
}

}  // namespace

}  // namespace outrider

NB_MODULE(_native, module) {
  // What Python still holds at exit, such as a cached machine, is no leak.
  nanobind::set_leak_warnings(false);
  using outrider::Machine;
  module.def("available_isas", &outrider::isa_names);
  nanobind::class_<Machine>(module, "Machine")
      .def(nanobind::new_(&outrider::new_machine), nanobind::arg("threads"),
           nanobind::arg("isa") = "auto")
      .def_prop_ro("threads", [](const Machine& self) { return self.pool->size(); })
      .def_prop_ro("isa", [](const Machine& self) { return outrider::isa_name(self.isa); });
  outrider::bind_weights(module);
  outrider::bind_decoder(module);
  outrider::bind_sampling(module);
  outrider::bind_training(module);
  outrider::bind_block(module);
  outrider::bind_drafts(module);
}
