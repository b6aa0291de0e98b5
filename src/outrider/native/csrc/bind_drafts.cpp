#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "blend.h"
#include "module.h"

namespace outrider {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using PySeat = std::pair<int32_t, int32_t>;

// The tables of a lookup are numpy's or a mapped file's; they live as long as this.
struct DraftMaker {
  DraftMaker(const BlendRule& rule, nb::tuple source_names, nb::tuple record_types,
             std::optional<Bytes> offset_bytes, std::optional<Bytes> entry_bytes, int32_t max_order)
      : offsets(std::move(offset_bytes)),
        entries(std::move(entry_bytes)),
        lookup(new_lookup(offsets, entries, max_order)),
        names(std::move(source_names)),
        records(std::move(record_types)),
        blend(rule, lookup ? &*lookup : nullptr) {}
  DraftMaker(const DraftMaker&) = delete;

  static std::optional<NgramLookup> new_lookup(const std::optional<Bytes>& offsets,
                                               const std::optional<Bytes>& entries,
                                               int32_t max_order) {
    if (!offsets || !entries) return std::nullopt;
    return NgramLookup(offsets->data(), static_cast<int64_t>(offsets->size()) / 4 - 1,
                       entries->data(), static_cast<int64_t>(entries->size()) / 8, max_order);
  }

  std::optional<Bytes> offsets, entries;
  std::optional<NgramLookup> lookup;
  nb::tuple names;    // of text and table
  nb::tuple records;  // named tuples of a cheap and of a merged draft
  Blend blend;
};

int32_t token_of(PyObject* item) {
  const long token = PyLong_AsLong(item);
  if (token == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (token < 0 || token > INT32_MAX) {
    throw std::invalid_argument("token " + std::to_string(token) + " is outside 0 to " +
                                std::to_string(INT32_MAX));
  }
  return static_cast<int32_t>(token);
}

// Reads what was appended to `tokens` since the last time.
void catch_up(DraftText& text, PyObject* tokens, int32_t order) {
  const int64_t count = PyList_GET_SIZE(tokens);
  for (int64_t i = text.own.num_tokens(); i < count; ++i) {
    const int32_t token = token_of(PyList_GET_ITEM(tokens, i));
    text.own.append(token);
    if (i + order >= count) text.tail.push_back(token);
  }
  const auto kept = std::min<std::ptrdiff_t>(order, static_cast<std::ptrdiff_t>(text.tail.size()));
  text.tail.erase(text.tail.begin(), text.tail.end() - kept);
}

// An instance of a named tuple.
nb::object record_of(nb::handle type, const nb::tuple& values) {
  const nb::tuple arguments = nb::make_tuple(values);
  auto* as_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  nb::object made = nb::steal(PyTuple_Type.tp_new(as_type, arguments.ptr(), nullptr));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

// A tuple of what `make` gives, as new references, for each pick.
template <class Make>
nb::tuple tuple_of(const std::vector<DraftPick>& picks, const Make& make) {
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(picks.size())));
  if (!made.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < picks.size(); ++i) {
    PyObject* item = make(i);
    if (item == nullptr) throw nb::python_error();
    PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), item);
  }
  return nb::borrow<nb::tuple>(made);
}

nb::tuple tokens_of(const std::vector<DraftPick>& picks) {
  return tuple_of(picks, [&](size_t i) { return PyLong_FromLong(picks[i].token); });
}

nb::tuple chances_of(const std::vector<DraftPick>& picks) {
  return tuple_of(picks, [&](size_t i) { return PyFloat_FromDouble(picks[i].chance); });
}

// Names of the sources; `network` are those of a network's tokens, place by place.
nb::tuple sources_of(const DraftMaker& self, const std::vector<DraftPick>& picks,
                     const nb::tuple& network) {
  return tuple_of(picks, [&](size_t i) {
    const bool is_network = picks[i].source == DraftSource::kNetwork;
    const auto place = static_cast<Py_ssize_t>(is_network ? i : size_t(picks[i].source));
    PyObject* name = PyTuple_GET_ITEM(is_network ? network.ptr() : self.names.ptr(), place);
    Py_INCREF(name);
    return name;
  });
}

nb::list draft(DraftMaker& self, const nb::sequence& calls, double least, double row_tokens) {
  nb::list drafted;
  for (nb::handle call : calls) {
    const auto [text, tokens, most, is_greedy, is_blind] =
        nb::cast<std::tuple<DraftText*, nb::list, int32_t, bool, bool>>(call);
    if (most < 0) {
      throw std::invalid_argument("a draft of " + std::to_string(most) + " tokens cannot be made");
    }
    catch_up(*text, tokens.ptr(), self.blend.order());
    text->limits = {most, least, is_greedy, is_blind};
    self.blend.draft(*text);
    const std::vector<DraftPick>& picks = text->picks;
    drafted.append(record_of(
        self.records[0], nb::make_tuple(tokens_of(picks), chances_of(picks),
                                        sources_of(self, picks, nb::tuple()),
                                        expected_tokens(picks), worth_of(picks, row_tokens))));
  }
  return drafted;
}

nb::list merge(DraftMaker& self, const nb::sequence& said) {
  nb::list merged;
  for (nb::handle each : said) {
    const auto [text, tokens, chances, sources] =
        nb::cast<std::tuple<DraftText*, std::vector<int32_t>, std::vector<double>, nb::tuple>>(each);
    if (chances.size() != tokens.size() || sources.size() != tokens.size()) {
      throw std::invalid_argument("a network's draft needs a chance and a source per token");
    }
    self.blend.merge(*text, tokens, chances);
    const std::vector<DraftPick>& picks = text->picks;
    nb::list drawn;
    for (size_t i = 0; i < picks.size(); ++i) {
      if (picks[i].source == DraftSource::kNetwork) drawn.append(i);
    }
    merged.append(record_of(
        self.records[1], nb::make_tuple(tokens_of(picks), chances_of(picks),
                                        sources_of(self, picks, sources), nb::tuple(drawn))));
  }
  return merged;
}

std::vector<double> learn(DraftMaker& self,
                          const std::vector<std::tuple<DraftText*, int64_t, int64_t>>& judged) {
  std::vector<double> unjudged;
  for (const auto& [text, accepted, verified] : judged) {
    unjudged.push_back(self.blend.learn(*text, accepted, verified));
  }
  return unjudged;
}

SuffixAutomaton::Seat seat_of(const SuffixAutomaton& automaton, const PySeat& seat) {
  const SuffixAutomaton::Seat own{seat.first, seat.second};
  automaton.check(own);
  return own;
}

void extend(SuffixAutomaton& automaton, const nb::list& tokens) {
  for (nb::handle token : tokens) automaton.append(token_of(token.ptr()));
}

PySeat follow(const SuffixAutomaton& automaton, const PySeat& seat, const nb::list& tokens) {
  SuffixAutomaton::Seat own = seat_of(automaton, seat);
  for (nb::handle token : tokens) own = automaton.follow(own, token_of(token.ptr()));
  return {own.state, own.context_len};
}

// Tokens, length of the first context and chances of a draft from `seat`.
nb::tuple continuation(const SuffixAutomaton& automaton, const PySeat& seat, int64_t max_tokens,
                       int64_t min_match_len, double min_confidence) {
  SuffixAutomaton::Seat own = seat_of(automaton, seat);
  SuffixAutomaton::NextToken found;
  nb::list tokens, chances;
  int32_t match_len = 0;
  double survival = 1.0;
  while (static_cast<int64_t>(tokens.size()) < max_tokens && automaton.next_token(own, &found) &&
         found.context_len >= min_match_len) {
    survival *= found.chance;
    if (survival < min_confidence) break;
    if (match_len == 0) match_len = found.context_len;
    tokens.append(found.token);
    chances.append(found.chance);
    own = found.seat;
  }
  return nb::make_tuple(nb::tuple(tokens), match_len, nb::tuple(chances));
}

}  // namespace

void bind_drafts(nb::module_& module) {
  nb::class_<SuffixAutomaton>(module, "SuffixAutomaton")
      .def(nb::init<int32_t, double>(), nb::arg("max_context"), nb::arg("doubt"))
      .def("__len__", &SuffixAutomaton::num_tokens)
      .def_prop_ro("tip",
                   [](const SuffixAutomaton& self) {
                     return PySeat(self.tip().state, self.tip().context_len);
                   })
      .def_prop_ro("num_states", &SuffixAutomaton::num_states)
      .def_prop_ro("num_transitions", &SuffixAutomaton::num_transitions)
      .def_prop_ro("bytes", &SuffixAutomaton::bytes)
      .def("extend", &extend, nb::arg("tokens"))
      .def("end_sequence", &SuffixAutomaton::end_sequence)
      .def("follow", &follow, nb::arg("seat"), nb::arg("tokens"))
      .def("draft", &continuation, nb::arg("seat"), nb::arg("max_tokens"),
           nb::arg("min_match_len"), nb::arg("min_confidence"));
  nb::class_<BlendRule>(module, "BlendRule")
      .def(nb::init<>())
      .def_rw("max_context", &BlendRule::max_context)
      .def_rw("doubt", &BlendRule::doubt)
      .def_rw("most_certain", &BlendRule::most_certain)
      .def_rw("agreed", &BlendRule::agreed)
      .def_rw("agreed_by_table", &BlendRule::agreed_by_table)
      .def_rw("opposed", &BlendRule::opposed)
      .def_rw("opposed_by_len", &BlendRule::opposed_by_len)
      .def_rw("rate", &BlendRule::rate)
      .def_rw("most_correction", &BlendRule::most_correction)
      .def_rw("last_slot", &BlendRule::last_slot);
  nb::class_<DraftText>(module, "DraftText")
      .def(nb::init<const BlendRule&>(), nb::arg("rule"))
      .def("__len__", [](const DraftText& self) { return self.own.num_tokens(); })
      .def_prop_ro("bytes", [](const DraftText& self) { return self.own.bytes(); });
  nb::class_<DraftMaker>(module, "DraftMaker")
      .def(nb::init<const BlendRule&, nb::tuple, nb::tuple, std::optional<Bytes>,
                    std::optional<Bytes>, int32_t>(),
           nb::arg("rule"), nb::arg("names"), nb::arg("records"), nb::arg("offsets").none(),
           nb::arg("entries").none(), nb::arg("max_order"))
      .def("draft", &draft, nb::arg("calls"), nb::arg("least"), nb::arg("row_tokens"))
      .def("merge", &merge, nb::arg("said"))
      .def("learn", &learn, nb::arg("judged"));
}

}  // namespace outrider
