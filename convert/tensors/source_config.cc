#include "convert/tensors/source_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/stored_head.h"

namespace tandem::convert {
namespace {

bool HasOwnHead(const ModelSource& source, const engine::FamilySpec& family,
                const engine::ModelConfig& config) {
  const std::optional<engine::TiedHead> tied = engine::FindTiedHead(family, config);
  if (!tied) return false;
  const int64_t head = FindWeight(source, tied->head), table = FindWeight(source, tied->table);
  if (head < 0 || table < 0) return false;
  const engine::ConstTensorView& a = source.tensors()[static_cast<size_t>(head)].view;
  const engine::ConstTensorView& b = source.tensors()[static_cast<size_t>(table)].view;
  if (a.dtype != b.dtype || a.shape != b.shape) return true;
  std::vector<std::byte> head_buffer, table_buffer;
  const bool is_equal =
      std::ranges::equal(source.Read(head, &head_buffer), source.Read(table, &table_buffer));
  source.LetGo(head);
  source.LetGo(table);
  return !is_equal;
}

}  // namespace

int64_t FindWeight(const ModelSource& source, const engine::WeightSpec& spec) {
  int64_t found = source.Find(spec.name);
  for (const std::string& alias : spec.aliases) {
    if (found < 0) found = source.Find(alias);
  }
  return found;
}

SourceConfig ConfigOf(const ModelSource& source) {
  const std::string name = source.name() + "/config.json";
  const std::optional<std::string> text = source.ReadText("config.json");
  if (!text) throw Error(ErrorCode::kDataLoss, source.name() + ": config.json is missing");
  const auto json = engine::ParseUntrustedJson(*text, name);
  SourceConfig result;
  result.family = &engine::FindFamily(json, name);
  result.config = engine::ParseModelConfig(*result.family, json, name);
  result.has_own_head = HasOwnHead(source, *result.family, result.config);
  if (result.has_own_head) result.config.tied_embeddings = false;
  return result;
}

void CheckShapes(const ModelSource& source, const SourceConfig& config) {
  for (const engine::WeightSpec& spec : config.family->list_weights(config.config)) {
    const int64_t at = FindWeight(source, spec);
    if (at < 0) continue;
    const engine::NamedTensor& tensor = source.tensors()[static_cast<size_t>(at)];
    if (tensor.view.shape == spec.source_shape) continue;
    throw Error(ErrorCode::kDataLoss, source.name() + ": tensor " + Quoted(tensor.name) +
                                          " has shape " + engine::ShapeText(tensor.view.shape) +
                                          ", but config.json requires " +
                                          engine::ShapeText(spec.source_shape));
  }
}

}  // namespace tandem::convert
