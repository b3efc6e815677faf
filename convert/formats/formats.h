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

// A format that is written: one file of this room, and one line in formats.cc.
struct Format {
  const char* name;
  std::span<const char* const> dtypes;
  // The dtype is a floating-point type that the source is told in. Otherwise the writer has the
  // source in its own types and makes of them what the spec says.
  bool casts_source;
  void (*write)(const ConvertSpec& spec, const WriteContext& context);
  // What was written as `target`, as a source of the same tensors.
  std::unique_ptr<ModelSource> (*open)(const ConvertSpec& spec,
                                       const std::filesystem::path& target);
  // Of a format whose target is one file: how its name ends (".gguf").
  const char* file_suffix = nullptr;
  std::span<const char* const> layouts = {};  // to choose from, the first unless another is asked
  // Whether `written`, which `open` gave, is the source; throws kDataLoss naming the tensor if not.
  // Null: the same tensors bit for bit.
  void (*compare)(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                  const std::function<void(int64_t bytes)>& advance) = nullptr;
  // The writer goes on with what a conversion that was killed left (WriteContext::journal). Of
  // other formats that is removed first.
  bool supports_resume = false;
  bool keeps_state = false;  // writes ModelSource::state() too
  // What is written is how the source differs from spec.base, which every source but an adapter
  // may then have, and must; spec.verify is the writer's, who alone knows what was computed.
  bool is_difference = false;

  bool IsFile() const { return file_suffix != nullptr; }
  bool HasDType(std::string_view dtype) const;
  bool HasLayout(std::string_view layout) const;
  std::string DTypeNames() const;  // "f32, bf16, f16"
  std::string LayoutNames() const;
};

std::span<const Format> Formats();                // in the order in which users see them
const Format* FindFormat(std::string_view name);  // by name or alias; null: not served

}  // namespace tandem::convert
