#include "training/program/tensor_split.h"

#include <cstring>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace tandem::training {
namespace {

using engine::AttentionSpec;
using engine::ModelConfig;
using engine::WeightSpec;

// Divides a count of the configuration.
class Divider {
 public:
  Divider(const engine::FamilySpec& family, int size) : family_(family.name), size_(size) {}

  void Divide(const char* what, int64_t* count) const {
    if (*count % size_ == 0) {
      *count /= size_;
      return;
    }
    throw Error(ErrorCode::kInvalidArgument,
                "ici_tensor_parallelism: family " + family_ + ": " + std::to_string(size_) +
                    " ranks cannot share " + std::to_string(*count) + " " + what +
                    " equally: use a divisor of " + std::to_string(*count));
  }

  void Divide(AttentionSpec* attention) const {
    Divide("heads (num_attention_heads)", &attention->n_heads);
    Divide("key-value heads (num_key_value_heads)", &attention->n_kv_heads);
  }

 private:
  std::string family_;
  int64_t size_;
};

void RefuseParts(const std::string& family, const ModelConfig& config) {
  if (config.experts.router.n_experts > 0) RefuseTensorSplit(family, "it has experts");
  if (!config.recurrent.layers.empty()) {
    RefuseTensorSplit(family, "it has layers with a recurrent state");
  }
  if (config.latent.kv_rank > 0) RefuseTensorSplit(family, "it has latent attention (MLA)");
  if (config.gemma.n_streams > 0) {
    RefuseTensorSplit(family, "it has several streams of hidden states (AltUp)");
  }
}

}  // namespace

void RefuseTensorSplit(const std::string& family, const std::string& what) {
  throw Error(ErrorCode::kUnsupported,
              "ici_tensor_parallelism: family " + family + ": " + what +
                  ", which ranks of the tensor axis cannot share yet: set it to 1, and use "
                  "ici_fsdp_parallelism or ici_data_parallelism instead");
}

TensorSplit TensorSplit::From(size_t first) const {
  if (!is_split()) return {};
  const auto offset = static_cast<int64_t>(first);
  return {place,
          {whole_specs.begin() + offset, whole_specs.end()},
          {weights.begin() + offset, weights.end()}};
}

ModelConfig PartOfConfig(const engine::FamilySpec& family, const ModelConfig& config, int size) {
  RefuseParts(std::string(family.name), config);
  const Divider divider(family, size);
  ModelConfig part = config;
  divider.Divide(&part.attention);
  for (AttentionSpec& layer : part.layer_attention) divider.Divide(&layer);
  divider.Divide("columns of feed-forward layers (intermediate_size)", &part.ffn_dim);
  for (int64_t& dim : part.gemma.ffn_dims) {
    divider.Divide("columns of feed-forward layers (intermediate_size)", &dim);
  }
  return part;
}

TensorSplit CompareSpecs(const std::string& family, std::vector<WeightSpec> whole,
                         const std::vector<WeightSpec>& part, TensorPlace place) {
  TANDEM_CHECK(whole.size() == part.size());
  TensorSplit split;
  split.place = place;
  for (size_t i = 0; i < part.size(); ++i) {
    WeightSplit& one = split.weights.emplace_back();
    const bool same_n = part[i].n == whole[i].n;
    const bool same_k = part[i].k == whole[i].k;
    TANDEM_CHECK(part[i].name == whole[i].name);
    if (same_n && same_k) continue;
    if (same_k && part[i].n * place.size == whole[i].n) {
      one.axis = WeightSplit::Axis::kOutputs;
      one.runs.push_back(part[i].n);
    } else if (same_n && part[i].k * place.size == whole[i].k) {
      one.axis = WeightSplit::Axis::kInputs;
    } else {
      RefuseTensorSplit(family, "weight " + whole[i].name + " has parts of unequal kinds");
    }
  }
  split.whole_specs = std::move(whole);
  return split;
}

void VisitPart(const WeightSplit& split, TensorPlace place, int64_t n, int64_t k,
               const VisitElements& visit) {
  switch (split.axis) {
    case WeightSplit::Axis::kWhole:
      return visit(0, 0, n * k);
    case WeightSplit::Axis::kOutputs: {
      int64_t row = 0;
      for (const int64_t run : split.runs) {
        visit((row * place.size + place.rank * run) * k, row * k, run * k);
        row += run;
      }
      TANDEM_CHECK(row == n);
      return;
    }
    case WeightSplit::Axis::kInputs:
      for (int64_t row = 0; row < n; ++row) {
        visit((row * place.size + place.rank) * k, row * k, k);
      }
      return;
  }
}

void TakePart(const WeightSplit& split, TensorPlace place, int64_t n, int64_t k, size_t width,
              const std::byte* whole, std::byte* part) {
  const auto bytes = [width](int64_t elements) { return static_cast<size_t>(elements) * width; };
  VisitPart(split, place, n, k, [&](int64_t from, int64_t to, int64_t count) {
    std::memcpy(part + bytes(to), whole + bytes(from), bytes(count));
  });
}

void PlacePart(const WeightSplit& split, TensorPlace place, int64_t n, int64_t k, size_t width,
               const std::byte* part, std::byte* whole) {
  const auto bytes = [width](int64_t elements) { return static_cast<size_t>(elements) * width; };
  VisitPart(split, place, n, k, [&](int64_t to, int64_t from, int64_t count) {
    std::memcpy(whole + bytes(to), part + bytes(from), bytes(count));
  });
}

}  // namespace tandem::training
