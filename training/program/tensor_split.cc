#include "training/program/tensor_split.h"

#include <cstring>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/model/families/shared_counts.h"

namespace tandem::training {
using engine::ModelConfig;
using engine::WeightSpec;

void RefuseTensorSplit(const TensorPlace& place, const std::string& family,
                       const std::string& what) {
  throw Error(ErrorCode::kUnsupported,
              std::string(TensorKey(place.divides_rows)) + ": family " + family + ": " + what +
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

ModelConfig PartOfConfig(const engine::FamilySpec& family, const ModelConfig& config,
                         const TensorPlace& place) {
  const std::string name(family.name);
  if (const std::string_view part = engine::PartOfNoCount(config); !part.empty()) {
    RefuseTensorSplit(place, name, "it has " + std::string(part));
  }
  ModelConfig part = config;
  for (const engine::SharedCount& shared : engine::SharedCounts(part)) {
    if (*shared.count % place.size != 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(TensorKey(place.divides_rows)) + ": family " + name + ": " +
                      std::to_string(place.size) + " ranks cannot share " +
                      std::to_string(*shared.count) + " " + shared.what +
                      " equally: use a divisor of " + std::to_string(*shared.count));
    }
    *shared.count /= place.size;
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
      RefuseTensorSplit(place, family, "weight " + whole[i].name + " has parts of unequal kinds");
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
