#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"

namespace tandem::convert {

// A target format: one folder of this room and one row in formats.cc.
struct Format {
  const char* name;
  std::span<const char* const> dtypes;
  // True: `dtype` is a floating-point type in which the source is decoded. False: the writer reads
  // the source in its own types and converts them.
  bool casts_source;
  void (*write)(const ConvertSpec& spec, const WriteContext& context);
  // Opens `target` as a source of the same tensors.
  std::unique_ptr<ModelSource> (*open)(const ConvertSpec& spec,
                                       const std::filesystem::path& target);
  // File name suffix (".gguf") of a format whose target is one file; else null.
  const char* file_suffix = nullptr;
  std::span<const char* const> layouts = {};  // choices of spec.layout, default first
  // Compares `written`, opened by `open`, with the source. Throws kDataLoss naming a tensor that
  // differs. Null: the tensors must be equal bit for bit.
  void (*compare)(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                  const std::function<void(int64_t bytes)>& advance) = nullptr;
  // The writer resumes the work of a killed conversion (WriteContext::journal). For other formats
  // that work is removed first.
  bool supports_resume = false;
  bool keeps_state = false;  // writes ModelSource::state() too
  // The target holds the difference of the source from spec.base. A base is then required, and a
  // source that is an adapter is refused. The writer itself carries out spec.verify.
  bool is_difference = false;

  bool IsFile() const { return file_suffix != nullptr; }
  bool HasDType(std::string_view dtype) const;
  bool HasLayout(std::string_view layout) const;
  std::string DTypeNames() const;  // "f32, bf16, f16"
  std::string LayoutNames() const;
};

std::span<const Format> Formats();                // in the order of user-facing lists
const Format* FindFormat(std::string_view name);  // by name or alias; null if unknown

}  // namespace tandem::convert
