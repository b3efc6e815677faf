// The files beside a MaxText checkpoint: those of the model, and maxtext.json.

#include "convert/formats/maxtext/maxtext_texts.h"

#include <nlohmann/json.hpp>

#include "convert/formats/maxtext/maxtext.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

}  // namespace

MaxTextTexts::MaxTextTexts(const fs::path& base, const fs::path& item_dir) {
  if (fs::is_regular_file(base)) {
    file_ = OpenModelFiles(base, std::nullopt);
    dir_ = base;
    return;
  }
  if (!base.empty()) {
    dir_ = base;
  } else {
    fs::path dir = fs::absolute(item_dir).lexically_normal();
    for (int i = 0; i < 3 && dir_.empty(); ++i, dir = dir.parent_path()) {
      if (fs::is_regular_file(dir / "config.json")) dir_ = dir;
    }
  }
  if (!dir_.empty() && fs::is_regular_file(dir_ / "config.json")) return;
  throw Error(ErrorCode::kInvalidArgument,
              item_dir.string() +
                  ": a MaxText checkpoint has no model config, and no config.json exists " +
                  (base.empty() ? "next to it" : "in " + base.string()) +
                  ": set base to the Hugging Face model directory whose config and tokenizer apply")
      .WithParam("source.base")
      .WithReason("missing_required_parameter");
}

std::optional<std::string> MaxTextTexts::Read(std::string_view name) const {
  if (file_) return file_->ReadText(name);
  const fs::path file = dir_ / name;
  if (!fs::is_regular_file(file)) return std::nullopt;
  return engine::ReadWholeFile(file, kMaxBytes);
}

MaxTextRecord ParseMaxTextRecord(std::string_view json, const std::string& source) {
  const nlohmann::ordered_json object = engine::ParseUntrustedJson(json, source);
  const auto broken = [&](const std::string& why) {
    return Error(ErrorCode::kDataLoss, source + ": " + why);
  };
  if (!object.is_object()) throw broken("must be a JSON object");
  MaxTextRecord record;
  record.rotates_pairs = engine::JsonBoolOr(object, "rotates_pairs", true, source);
  const auto dtypes = object.find("dtypes");
  if (dtypes == object.end()) return record;
  if (!dtypes->is_object()) throw broken("field 'dtypes' must be an object");
  for (const auto& [name, tensors] : dtypes->items()) {
    const std::optional<engine::DType> dtype = FloatTypeOf(name);
    if (!dtype || !tensors.is_array())
      throw broken("field 'dtypes' must map f32, bf16 or f16 to an array, got " + Quoted(name));
    for (const auto& tensor : tensors) {
      if (!tensor.is_string()) throw broken("field 'dtypes' must list tensor names as strings");
      record.dtypes[tensor.get<std::string>()] = *dtype;
    }
  }
  return record;
}

}  // namespace tandem::convert
