#include "convert/formats/check_spec.h"

#include "convert/formats/formats.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "convert/sources/source.h"
#include "convert/work/provenance.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/model_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

Error Unserved(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, message)
      .WithParam(param)
      .WithReason("unsupported_value");
}

bool IsModelOf(const Format& format, const fs::path& path) {
  if (fs::is_symlink(path)) return false;
  if (format.IsFile()) return engine::ModelDir::IsModelFile(path);
  return fs::is_regular_file(path / "config.json") || fs::is_regular_file(path / kRecordFile);
}

void CheckMaxKl(const ConvertSpec& spec) {
  if (!spec.max_kl) return;
  const auto invalid = [](const std::string& message) {
    return Error(ErrorCode::kInvalidArgument, message)
        .WithParam("max_kl")
        .WithReason("invalid_value");
  };
  // Also refuses NaN.
  if (!(*spec.max_kl >= 0 && *spec.max_kl <= kMostKl)) {
    throw invalid("max_kl must be in [0, 1000000] nats");
  }
  if (!spec.certificate)
    throw invalid(
        "max_kl needs the certificate, which is turned off: turn it on or leave out max_kl");
}

void CheckTarget(const ConvertSpec& spec, const Format& format) {
  if (!fs::exists(fs::symlink_status(spec.target))) return;
  const auto is_there = [&](const std::string& why) {
    return Error(ErrorCode::kAlreadyExists, spec.target.filename().string() + why)
        .WithParam("target.name")
        .WithReason("already_exists");
  };
  if (!spec.overwrite)
    throw is_there(
        " already exists: choose another name, or allow overwriting (overwrite, --overwrite)");
  if (!IsModelOf(format, spec.target)) {
    throw is_there(std::string(" exists and is not a model ") +
                   (format.IsFile() ? "file" : "directory") +
                   ", so it is not overwritten: choose another name");
  }
  const fs::path target = fs::canonical(spec.target);
  for (const fs::path& input : {spec.source, spec.base}) {
    if (input.empty()) continue;
    const fs::path inside = fs::weakly_canonical(input).lexically_relative(target);
    if (inside.empty() || *inside.begin() == "..") continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        target.filename().string() + " contains an input of this conversion: choose another name")
        .WithParam("target.name")
        .WithReason("invalid_value");
  }
}

void CheckBase(const ConvertSpec& spec, const SourceForm& form, const Format& format) {
  const std::string source = spec.source.filename().string();
  const auto refuse = [](const std::string& message, const char* reason) {
    return Error(ErrorCode::kInvalidArgument, message).WithParam("source.base").WithReason(reason);
  };
  const bool is_adapter = form.kind == SourceKind::kAdapter;
  if (format.is_difference && is_adapter) {
    throw Error(ErrorCode::kInvalidArgument, source + " is already an adapter: " + format.name +
                                                 " needs a tuned model as source")
        .WithParam("source")
        .WithReason("invalid_value");
  }
  if (spec.base.empty()) {
    if (format.is_difference) {
      throw refuse(std::string(format.name) +
                       " needs a base: give the directory of the model that " + source +
                       " was tuned from",
                   "missing_required_parameter");
    }
    if (form.base != BaseUse::kRequired) return;
    throw refuse(source + " is an adapter: base must name the directory of its model",
                 "missing_required_parameter");
  }
  if (form.base == BaseUse::kNone && !format.is_difference) {
    throw refuse(source + " is not an adapter, so base must be left out", "invalid_value");
  }
  const SourceKind kind = FormOf(spec.base, "source.base").kind;
  if (kind == SourceKind::kAdapter) {
    throw refuse(spec.base.filename().string() + " is an adapter itself: base must be a model",
                 "invalid_value");
  }
  if (kind == SourceKind::kHf || kind == SourceKind::kNative) return;
  if (kind == SourceKind::kFile && format.is_difference) return;
  throw refuse(spec.base.filename().string() +
                   " is not a model directory, which base must be: convert it to hf first",
               "invalid_value");
}

void CheckPeft(const ConvertSpec& spec, const Format& format) {
  const int64_t rank = spec.peft.rank;
  const double alpha = spec.peft.alpha;
  const auto invalid = [](const char* param, const std::string& message, const char* reason) {
    return Error(ErrorCode::kInvalidArgument, message).WithParam(param).WithReason(reason);
  };
  if (!format.is_difference) {
    if (rank == 0 && alpha == 0) return;
    throw invalid(rank != 0 ? "target.rank" : "target.alpha",
                  std::string("rank and alpha apply only to peft, not to ") + format.name,
                  "invalid_value");
  }
  const std::string range = "peft needs a rank in [1, " + std::to_string(kMostRank) + "]";
  if (rank == 0) throw invalid("target.rank", range, "missing_required_parameter");
  if (rank < 1 || rank > kMostRank) throw invalid("target.rank", range, "invalid_value");
  if (alpha == 0 || (alpha >= kLeastAlpha && alpha <= kMostAlpha)) return;
  throw invalid("target.alpha", "alpha must be in [0.000001, 1000000]", "invalid_value");
}

}  // namespace

std::string FormatNames() {
  std::string names;
  for (const Format& format : Formats()) {
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  }
  return names;
}

std::string TargetName(std::string_view format_name, const std::string& name) {
  const Format* format = FindFormat(format_name);
  if (format == nullptr || !format->IsFile() || name.ends_with(format->file_suffix)) return name;
  return name + format->file_suffix;
}

void CheckConvertSpec(const ConvertSpec& spec) {
  const Format* format = FindFormat(spec.format);
  if (format == nullptr) {
    throw Unserved("target.format", "format " + Quoted(spec.format) +
                                        " is not supported; supported are " + FormatNames());
  }
  if (!spec.dtype.empty() && !format->HasDType(spec.dtype)) {
    throw Unserved("target.dtype", "dtype " + Quoted(spec.dtype) + " is not supported by " +
                                       format->name + "; supported are " + format->DTypeNames());
  }
  if (!spec.layout.empty() && !format->HasLayout(spec.layout)) {
    throw Unserved("target.layout",
                   format->layouts.empty()
                       ? std::string(format->name) + " has no choice of layout: leave layout out"
                       : "layout " + Quoted(spec.layout) + " is not supported by " + format->name +
                             "; supported are " + format->LayoutNames());
  }
  CheckMaxKl(spec);
  if (spec.maxtext.zarr != 2 && spec.maxtext.zarr != 3) {
    throw Unserved("target.zarr", "zarr must be version 2 or 3");
  }
  if (const auto error = ErrorOf([&] { RotatesPairs(spec.maxtext.model); })) {
    throw Error(error->code(), error->what())
        .WithParam("target.maxtext_model")
        .WithReason("invalid_value");
  }
  CheckPeft(spec, *format);
  CheckBase(spec, FormOf(spec.source, "source"), *format);
  CheckTarget(spec, *format);
}

}  // namespace tandem::convert
