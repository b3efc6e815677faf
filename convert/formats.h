#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "convert/model_source.h"
#include "convert/spec.h"
#include "engine/io/content_hash.h"
#include "engine/ops/ops_context.h"

namespace tandem::convert {

class Journal;

// What a writer may use besides the spec.
struct WriteContext {
  const ModelSource& source;
  // What becomes the target once all is written and compared: a directory, empty as yet, or the
  // file that is to be made.
  std::filesystem::path target;
  engine::OpsContext& ops;  // its pool may do several tensors at a time
  // Called, from the thread that called the writer, with how many bytes of the source's tensors
  // have been dealt with since the last call; what it throws ends the conversion.
  std::function<void(int64_t bytes)> advance;
  // What of the target a conversion that was killed has written; null: nothing is gone on from.
  Journal* journal = nullptr;
  // What the target cannot say of the source, for whoever asked for it.
  std::function<void(const std::string& text)> warn = [](const std::string&) {};
  // A JSON object that the record keeps under the format's name, and the result tells.
  std::function<void(std::string json)> report = [](const std::string&) {};
  // Files of the target that were hashed as they were written, so that the record need not read
  // them once more. From the thread that called the writer.
  std::function<void(const engine::FileHashes&)> hashed = [](const engine::FileHashes&) {};
};

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
  bool goes_on = false;
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

const Format* FindFormat(std::string_view name);  // null: not served

// native.cc: native and native-params
void WriteNative(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenNative(const ConvertSpec& spec,
                                        const std::filesystem::path& target);

// maxtext_writer.cc
void WriteMaxText(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenWrittenMaxText(const ConvertSpec& spec,
                                                const std::filesystem::path& target);
void CompareMaxText(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                    const std::function<void(int64_t bytes)>& advance);

// hf.cc
void WriteHf(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenHf(const ConvertSpec& spec, const std::filesystem::path& target);

// gguf.cc
void WriteGguf(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenGguf(const ConvertSpec& spec, const std::filesystem::path& target);
void CompareWithGguf(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                     const std::function<void(int64_t bytes)>& advance);

// peft.cc
void WritePeft(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenPeft(const ConvertSpec& spec, const std::filesystem::path& target);

}  // namespace tandem::convert
