#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"

namespace tandem::convert {

// What an adapter that was extracted has of one weight that differs from its base's. Frobenius
// norms; D is what it differs by.
struct ExtractedWeight {
  std::string name;
  bool has_module = false;  // else it is no linear weight of a layer, and stays the base's
  double change2 = 0;       // |D|²
  double base2 = 0;         // |base|²
  double error2 = 0;        // |D - scale B A|²; without a module |D|²
  double RelativeError() const;
  double RelativeChange() const;  // |D| / |base|; 0 where the base has none
};

struct PeftReport {
  int64_t rank = 0;
  double alpha = 0;
  int64_t unchanged = 0;                 // weights
  std::vector<ExtractedWeight> weights;  // those that differ, by the model's order
  std::vector<std::string> warnings;
  // An object: "rank", "alpha", "modules" (how many), "relative_error" of all modules together,
  // "worst_tensor", "worst_relative_error", "not_expressed" {"tensors", "relative_change",
  // "share_of_change"}, "unchanged", "warnings", and of every one of "tensors" its "name",
  // "module", "relative_change", "relative_error".
  std::string Json() const;
};

// The format peft: the adapter that turns spec.base into the source.
void WritePeft(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenPeft(const ConvertSpec& spec, const std::filesystem::path& target);

}  // namespace tandem::convert
