#include "convert/spec.h"

#include <nlohmann/json.hpp>

#include "convert/formats.h"
#include "convert/source.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

Error Unserved(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, message)
      .WithParam(param)
      .WithReason("unsupported_value");
}

void CheckTarget(const ConvertSpec& spec) {
  if (!fs::exists(fs::symlink_status(spec.target))) return;
  const auto is_there = [&](const std::string& why) {
    return Error(ErrorCode::kAlreadyExists, spec.target.filename().string() + why)
        .WithParam("target.name")
        .WithReason("already_exists");
  };
  if (!spec.overwrite) throw is_there(" exists already: choose another name, or set overwrite");
  const bool is_model =
      !fs::is_symlink(spec.target) && fs::is_regular_file(spec.target / "config.json");
  if (!is_model) throw is_there(" exists and is no model directory: it is not overwritten");
  const fs::path target = fs::canonical(spec.target);
  for (const fs::path& input : {spec.source, spec.base}) {
    if (input.empty()) continue;
    const fs::path inside = fs::weakly_canonical(input).lexically_relative(target);
    if (inside.empty() || *inside.begin() == "..") continue;
    throw Error(ErrorCode::kInvalidArgument,
                target.filename().string() + " is what the conversion reads: choose another name")
        .WithParam("target.name")
        .WithReason("invalid_value");
  }
}

}  // namespace

std::string ConvertSpecJson(const ConvertSpec& spec) {
  return nlohmann::ordered_json{{"source", spec.source.string()}, {"base", spec.base.string()},
                                {"format", spec.format},          {"dtype", spec.dtype},
                                {"target", spec.target.string()}, {"overwrite", spec.overwrite},
                                {"verify", spec.verify}}
      .dump();
}

ConvertSpec ParseConvertSpec(std::string_view json, const std::string& source) {
  const auto object = engine::ParseUntrustedJson(json, source);
  if (!object.is_object()) throw Error(ErrorCode::kInvalidArgument, source + ": is no object");
  ConvertSpec spec;
  spec.source = engine::JsonStringOr(object, "source", "", source);
  spec.base = engine::JsonStringOr(object, "base", "", source);
  spec.format = engine::JsonStringOr(object, "format", spec.format, source);
  spec.dtype = engine::JsonStringOr(object, "dtype", "", source);
  spec.target = engine::JsonStringOr(object, "target", "", source);
  spec.overwrite = engine::JsonBoolOr(object, "overwrite", false, source);
  spec.verify = engine::JsonBoolOr(object, "verify", true, source);
  if (!spec.source.empty() && !spec.target.empty()) return spec;
  throw Error(ErrorCode::kInvalidArgument, source + ": needs source and target");
}

void CheckConvertSpec(const ConvertSpec& spec) {
  const Format* format = FindFormat(spec.format);
  if (format == nullptr) {
    throw Unserved("target.format", "format " + Quoted(spec.format) +
                                        " is not written by this version; served are " +
                                        FormatNames());
  }
  if (!spec.dtype.empty() && !format->HasDType(spec.dtype)) {
    throw Unserved("target.dtype", "dtype " + Quoted(spec.dtype) + " is none of " +
                                       format->DTypeNames() + ", which " + format->name +
                                       " is written in");
  }
  const SourceKind kind = SniffSource(spec.source, "source");
  if (kind == SourceKind::kAdapter && spec.base.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                spec.source.filename().string() + " is an adapter: base must say of which model")
        .WithParam("source.base")
        .WithReason("missing_required_parameter");
  }
  if (kind != SourceKind::kAdapter && !spec.base.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                spec.source.filename().string() + " is no adapter, and has no base")
        .WithParam("source.base")
        .WithReason("invalid_value");
  }
  if (kind == SourceKind::kAdapter && SniffSource(spec.base, "source.base") != SourceKind::kHf) {
    throw Error(ErrorCode::kInvalidArgument,
                spec.base.filename().string() + " is an adapter itself: name the model as base")
        .WithParam("source.base")
        .WithReason("invalid_value");
  }
  CheckTarget(spec);
}

}  // namespace tandem::convert
