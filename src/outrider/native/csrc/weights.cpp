#include <stdexcept>
#include <utility>

#include "decoder.h"

namespace outrider {

Weights::Weights(const Shape& shape) : shape_(shape), layers_(shape.num_layers) {}

std::vector<std::pair<std::string, Weights::MatrixPlace>> Weights::matrices(int layer) {
  const Shape& s = shape_;
  if (layer < 0) {
    std::vector<std::pair<std::string, MatrixPlace>> places = {
        {"embedding", {&embedding_, s.vocab_size, s.hidden_size}}};
    if (!s.is_head_tied) places.push_back({"head", {&head_, s.vocab_size, s.hidden_size}});
    return places;
  }
  LayerWeights& own = layers_[layer];
  return {
      {"query", {&own.query, s.query_size(), s.hidden_size}},
      {"key", {&own.key, s.key_size(), s.hidden_size}},
      {"value", {&own.value, s.key_size(), s.hidden_size}},
      {"output", {&own.output, s.hidden_size, s.query_size()}},
      {"gate", {&own.gate, s.intermediate_size, s.hidden_size}},
      {"up", {&own.up, s.intermediate_size, s.hidden_size}},
      {"down", {&own.down, s.hidden_size, s.intermediate_size}},
  };
}

std::vector<std::pair<std::string, Weights::VectorPlace>> Weights::vectors(int layer) {
  const Shape& s = shape_;
  if (layer < 0) return {{"norm", {&norm_, s.hidden_size}}};
  LayerWeights& own = layers_[layer];
  std::vector<std::pair<std::string, VectorPlace>> places = {
      {"attention_norm", {&own.attention_norm, s.hidden_size}},
      {"mlp_norm", {&own.mlp_norm, s.hidden_size}}};
  if (s.has_head_norms) {
    places.push_back({"query_norm", {&own.query_norm, s.head_dim}});
    places.push_back({"key_norm", {&own.key_norm, s.head_dim}});
  }
  if (s.has_qkv_bias) {
    places.push_back({"query_bias", {&own.query_bias, s.query_size()}});
    places.push_back({"key_bias", {&own.key_bias, s.key_size()}});
    places.push_back({"value_bias", {&own.value_bias, s.key_size()}});
  }
  return places;
}

namespace {

std::string described(int layer, const std::string& name) {
  return layer < 0 ? name : "layer " + std::to_string(layer) + " " + name;
}

void check_layer(int layer, int num_layers) {
  if (layer < -1 || layer >= num_layers) {
    throw std::invalid_argument("layer " + std::to_string(layer) + " is outside -1 to " +
                                std::to_string(num_layers - 1));
  }
}

}  // namespace

void Weights::set_matrix(int layer, const std::string& name, PackedMatrix matrix) {
  check_layer(layer, shape_.num_layers);
  for (auto& [known, place] : matrices(layer)) {
    if (known != name) continue;
    if (matrix.out_features() != place.rows || matrix.in_features() != place.columns) {
      throw std::invalid_argument(
          described(layer, name) + " is " + std::to_string(matrix.out_features()) + " x " +
          std::to_string(matrix.in_features()) + ", but the model has " +
          std::to_string(place.rows) + " x " + std::to_string(place.columns));
    }
    *place.matrix = std::move(matrix);
    return;
  }
  throw std::invalid_argument(described(layer, name) + " is no matrix of this model");
}

void Weights::set_vector(int layer, const std::string& name, std::vector<float> values) {
  check_layer(layer, shape_.num_layers);
  for (auto& [known, place] : vectors(layer)) {
    if (known != name) continue;
    if (static_cast<int64_t>(values.size()) != place.size) {
      throw std::invalid_argument(described(layer, name) + " has " + std::to_string(values.size()) +
                                  " numbers, but the model has " + std::to_string(place.size));
    }
    *place.values = std::move(values);
    return;
  }
  throw std::invalid_argument(described(layer, name) + " is no vector of this model");
}

void Weights::check_complete() const {
  auto& self = const_cast<Weights&>(*this);  // Places are only read here.
  for (int layer = -1; layer < shape_.num_layers; layer++) {
    for (auto& [name, place] : self.matrices(layer)) {
      if (place.matrix->empty()) {
        throw std::invalid_argument(described(layer, name) + " was never set");
      }
    }
    for (auto& [name, place] : self.vectors(layer)) {
      if (place.values->empty()) {
        throw std::invalid_argument(described(layer, name) + " was never set");
      }
    }
  }
}

size_t Weights::bytes() const {
  auto& self = const_cast<Weights&>(*this);
  size_t total = 0;
  for (int layer = -1; layer < shape_.num_layers; layer++) {
    for (auto& [name, place] : self.matrices(layer)) total += place.matrix->bytes();
    for (auto& [name, place] : self.vectors(layer)) total += place.size * sizeof(float);
  }
  return total;
}

}  // namespace outrider
