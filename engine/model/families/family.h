#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/model/families/layer_ops.h"
#include "engine/model/families/weights.h"
#include "engine/ops/rows.h"

namespace tandem::engine {

struct GgufArchitecture;
struct LoraNames;
struct MaxTextTree;

// The parameters of one rotation table. With fewer than head_dim/2 frequencies, only the first two
// dimensions per frequency rotate.
struct RopeSpec {
  std::vector<double> frequencies;  // [rotary_dim/2], scaling applied
  double amplitude = 1;             // multiplies cosine and sine
  int64_t head_dim = 0;             // 0: the config's
  bool interleaved = false;         // dimension 2i pairs with 2i + 1
  double growth = 0;                // of the amplitude with the position (engine/ops/rows.h)
  int64_t growth_period = 1;
  int64_t growth_shift = 0;
};

// Fresh weights whose shape the fields of a training run describe.
struct FreshFields {
  std::string_view ffn_dim;               // default of the field, for --help
  void (*complete)(ModelConfig& config);  // sets ffn_dim where it is 0, and the activation
};

// A model family: its graph, and its names and limits in other formats. families.cc has the table
// of all families.
struct FamilySpec {
  std::string_view name;
  std::string_view models = {};  // by the names that people know, for tables; at most 44 columns
  // `architectures[0]` or `model_type` values of this family. The first two are the class and the
  // model type that written files have.
  std::span<const std::string_view> architectures;
  // Throws kDataLoss / kUnsupported naming `source` and the field.
  ModelConfig (*parse_config)(const nlohmann::ordered_json& config, const std::string& source);
  // The config.json of a model with this configuration, in Hugging Face's form.
  nlohmann::ordered_json (*write_config)(const ModelConfig& config);
  std::vector<WeightSpec> (*list_weights)(const ModelConfig& config);
  // The tables that LayerOps::Rope names by index; none for families without rope.
  std::vector<RopeSpec> (*list_ropes)(const ModelConfig& config);
  void (*forward)(const ModelConfig& config, const Weights& weights, LayerOps& ops);
  // Turns a small plain model into one of this family with all optional parts.
  void (*shape_tiny)(ModelConfig& config);

  const GgufArchitecture* gguf = nullptr;  // gguf_architecture.h; null: GGUF has no such model
  const MaxTextTree* maxtext = nullptr;    // maxtext_tree.h; null: MaxText has no such model
  const LoraNames* lora = nullptr;         // maxtext_tree.h; null: layers have their paths only
  const FreshFields* fresh = nullptr;      // null: fresh weights need a config.json
};

std::span<const FamilySpec* const> Families();
// The names of the families for which `has` holds: "llama, mistral, …".
std::string FamilyNames(bool (*has)(const FamilySpec& family));

// Adds a family to the table for this object's life. A program that links a family of its own makes
// one before it starts threads: the table has no lock. The family must outlive it.
class FamilyRegistration {
 public:
  explicit FamilyRegistration(const FamilySpec& family);
  ~FamilyRegistration();
  FamilyRegistration(const FamilyRegistration&) = delete;
  FamilyRegistration& operator=(const FamilyRegistration&) = delete;

 private:
  const FamilySpec* family_;
};

// The family's ropes, with their head_dim.
std::vector<RopeSpec> FamilyRopes(const FamilySpec& family, const ModelConfig& config);
// The family's rope tables for positions below `max_positions`.
std::vector<RopeTable> MakeRopeTables(const FamilySpec& family, const ModelConfig& config,
                                      int64_t max_positions);
// The family of a config.json, or of its text part if it describes a multimodal model. Throws
// kUnsupported naming what the architecture needs, or listing the supported ones.
const FamilySpec& FindFamily(const nlohmann::ordered_json& config, const std::string& source);
// The config that FindFamily's family reads from this file. Throws as `parse_config`.
ModelConfig ParseModelConfig(const FamilySpec& family, const nlohmann::ordered_json& config,
                             const std::string& source);
// Whether only a part of the model that the file describes is read.
bool IsMultimodal(const nlohmann::ordered_json& config, const std::string& source);
const FamilySpec& FindFamilyByName(std::string_view name);
// The first family that takes FreshFields.
const FamilySpec& DefaultFreshFamily();

}  // namespace tandem::engine
