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

// Result for one weight that differs from the base's. D is the difference; norms are Frobenius
// norms.
struct ExtractedWeight {
  std::string name;
  bool has_module = false;  // false: not a linear weight of a layer, so the adapter omits it
  double change2 = 0;       // |D|²
  double base2 = 0;         // |base|²
  double error2 = 0;        // |D - scale B A|²; |D|² without a module
  double RelativeError() const;
  double RelativeChange() const;  // |D| / |base|; 0 if |base| is 0
};

struct PeftReport {
  int64_t rank = 0;
  double alpha = 0;
  int64_t unchanged = 0;                 // weights
  std::vector<ExtractedWeight> weights;  // changed weights in the model's order
  std::vector<std::string> warnings;
  // Returns an object with "rank", "alpha", "modules" (their number), "relative_error" of all
  // modules together, "worst_tensor", "worst_relative_error", "not_expressed" {"tensors",
  // "relative_change", "share_of_change"}, "unchanged", "warnings" and "tensors". Each entry of
  // "tensors" has "name", "module", "relative_change" and "relative_error".
  std::string Json() const;
};

// Writes the format peft: the adapter that turns spec.base into the source.
void WritePeft(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenPeft(const ConvertSpec& spec, const std::filesystem::path& target);

}  // namespace tandem::convert
