#include "convert/spec/spec.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/json.h"

namespace tandem::convert {

std::string ConvertSpecJson(const ConvertSpec& spec) {
  nlohmann::ordered_json json{
      {"source", spec.source.string()}, {"base", spec.base.string()},
      {"format", spec.format},          {"dtype", spec.dtype},
      {"layout", spec.layout},          {"max_shard_bytes", spec.max_shard_bytes},
      {"target", spec.target.string()}, {"overwrite", spec.overwrite},
      {"verify", spec.verify},          {"certificate", spec.certificate}};
  json["ocdbt"] = spec.maxtext.ocdbt;
  json["zarr"] = spec.maxtext.zarr;
  json["maxtext_model"] = spec.maxtext.model;
  json["all_bf16"] = spec.maxtext.all_bf16;
  if (spec.peft.rank != 0) json["rank"] = spec.peft.rank;
  if (spec.peft.alpha != 0) json["alpha"] = spec.peft.alpha;
  if (spec.max_kl) json["max_kl"] = *spec.max_kl;
  return json.dump();
}

ConvertSpec ParseConvertSpec(std::string_view json, const std::string& source) {
  const auto object = engine::ParseUntrustedJson(json, source);
  if (!object.is_object())
    throw Error(ErrorCode::kInvalidArgument, source + ": must be a JSON object");
  ConvertSpec spec;
  spec.source = engine::JsonStringOr(object, "source", "", source);
  spec.base = engine::JsonStringOr(object, "base", "", source);
  spec.format = engine::JsonStringOr(object, "format", spec.format, source);
  spec.dtype = engine::JsonStringOr(object, "dtype", "", source);
  spec.layout = engine::JsonStringOr(object, "layout", "", source);
  spec.max_shard_bytes =
      engine::JsonIntOr(object, "max_shard_bytes", spec.max_shard_bytes, 1, INT64_MAX, source);
  spec.maxtext.ocdbt = engine::JsonBoolOr(object, "ocdbt", true, source);
  spec.maxtext.zarr = static_cast<int>(engine::JsonIntOr(object, "zarr", 3, 2, 3, source));
  spec.maxtext.model = engine::JsonStringOr(object, "maxtext_model", "", source);
  spec.maxtext.all_bf16 = engine::JsonBoolOr(object, "all_bf16", false, source);
  spec.peft.rank = engine::JsonIntOr(object, "rank", 0, 0, kMostRank, source);
  spec.peft.alpha = engine::JsonNumberOr(object, "alpha", 0, 0, kMostAlpha, source);
  spec.target = engine::JsonStringOr(object, "target", "", source);
  spec.overwrite = engine::JsonBoolOr(object, "overwrite", false, source);
  spec.verify = engine::JsonBoolOr(object, "verify", true, source);
  spec.certificate = engine::JsonBoolOr(object, "certificate", true, source);
  if (object.contains("max_kl") && !object["max_kl"].is_null()) {
    spec.max_kl = engine::JsonNumberOr(object, "max_kl", 0, 0, kMostKl, source);
  }
  if (!spec.source.empty() && !spec.target.empty()) return spec;
  throw Error(ErrorCode::kInvalidArgument, source + ": fields 'source' and 'target' are required");
}

}  // namespace tandem::convert
