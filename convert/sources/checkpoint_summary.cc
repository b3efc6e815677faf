#include "convert/sources/checkpoint_summary.h"

#include <nlohmann/json.hpp>

#include "convert/sources/tensor_source_open.h"
#include "convert/work/provenance.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxSummaryBytes = 16 << 20;

// Returns null if the file does not exist.
Json ReadObject(const fs::path& file) {
  if (!fs::is_regular_file(file)) return {};
  Json json =
      engine::ParseUntrustedJson(engine::ReadWholeFile(file, kMaxSummaryBytes), file.string());
  if (!json.is_object())
    throw Error(ErrorCode::kDataLoss, file.string() + ": must be a JSON object");
  return json;
}

// Copies the fields that are numbers or short texts.
void Copy(const Json& from, std::initializer_list<const char*> fields, Json* to) {
  constexpr size_t kMaxText = 256;
  if (!from.is_object()) return;
  for (const char* field : fields) {
    const auto value = from.find(field);
    if (value == from.end()) continue;
    const bool is_text =
        value->is_string() && value->get_ref<const std::string&>().size() <= kMaxText;
    if (is_text || value->is_number()) (*to)[field] = *value;
  }
}

void AddOrbax(const fs::path& item, Json* out) {
  // A step has its metadata beside its items; an item that is a whole checkpoint has it inside.
  for (const fs::path& dir : {item, item.parent_path()}) {
    const Json metadata = ReadObject(dir / "_CHECKPOINT_METADATA");
    if (!metadata.is_object()) continue;
    if (dir != item) (*out)["step"] = dir.filename().string();
    Json& orbax = (*out)["orbax"] = Json::object();
    orbax["item"] = item.filename().string();
    Copy(metadata, {"item_handlers", "init_timestamp_nsecs", "commit_timestamp_nsecs"}, &orbax);
    return;
  }
}

void AddTensors(const ModelSource& source, Json* out) {
  int64_t largest = -1;
  for (const engine::NamedTensor& tensor : source.tensors()) {
    if (tensor.view.elements() <= largest) continue;
    largest = tensor.view.elements();
    (*out)["dtype"] = DTypeName(tensor.view.dtype);
  }
  (*out)["tensors"] = source.tensors().size();
  (*out)["bytes"] = source.stored_bytes();
}

}  // namespace

std::string CheckpointSummary(const fs::path& given) {
  const OpenedTensors opened = OpenTensors(given);
  Json out = {{"format", opened.format}, {"path", opened.path.string()}};
  if (opened.kind == TensorsKind::kOrbax) AddOrbax(opened.path, &out);
  Copy(ReadObject(opened.path / "manifest.json"), {"kind", "layout", "arch", "step"}, &out);
  Copy(ReadObject(opened.path / "train_state.json"),
       {"optimizer_steps", "tokens_seen", "best_step", "best_eval_loss"}, &out["state"]);
  if (out["state"].empty()) out.erase("state");
  if (opened.kind != TensorsKind::kOrbax) {
    const std::optional<std::string> config = opened.source->ReadText("config.json");
    if (config) {
      const Json json = engine::ParseUntrustedJson(*config, "config.json");
      if (!out.contains("arch") && json.is_object()) {
        Json family = Json::object();
        Copy(json, {"model_type"}, &family);
        if (family.contains("model_type")) out["arch"] = family["model_type"];
      }
    }
  }
  AddTensors(*opened.source, &out);
  // The record of a step may be in the directory of steps.
  std::string provenance = ReadProvenance(opened.path);
  if (provenance.empty() && opened.path != given) provenance = ReadProvenance(given);
  out["provenance"] = provenance.empty() ? Json() : Json::parse(provenance);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::convert
