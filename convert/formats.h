#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "convert/spec.h"
#include "engine/ops/ops_context.h"

namespace tandem::convert {

// What a writer may use besides the spec.
struct WriteContext {
  engine::OpsContext& ops;
  std::filesystem::path cache_dir;  // of packed weights; empty: none
  std::string record;               // text of convert.json, which goes into the target
  // Called with how many tensors of how many are done; what it throws ends the conversion.
  std::function<void(int64_t done, int64_t total)> progress;
};

// A format that is written: one file of this room, and one line in formats.cc. `write` makes the
// target whole or not at all, in memory bounded by the largest tensor.
struct Format {
  const char* name;
  std::span<const char* const> dtypes;
  void (*write)(const ConvertSpec& spec, const WriteContext& context);

  bool HasDType(std::string_view dtype) const;
  std::string DTypeNames() const;  // "f32, bf16, f16"
};

const Format* FindFormat(std::string_view name);  // null: not served
std::string FormatNames();

// hf.cc
void WriteHf(const ConvertSpec& spec, const WriteContext& context);

}  // namespace tandem::convert
