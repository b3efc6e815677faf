#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"

namespace tandem::engine {

// The factor of A x: alpha / rank, or alpha / sqrt(rank) with rank-stabilized LoRA (Kalajdzievski
// 2023).
float LoraScale(double alpha, int64_t rank, bool rank_stabilized);

// An adapter's pair of matrices for one linear layer or one table of embeddings.
struct LoraModule {
  std::string path;  // of the module in the base model: "model.layers.0.mlp.up_proj"
  int64_t rank = 0;
  float scale = 1;    // LoraScale
  ConstTensorView a;  // [rank, in]; of a table [rank, rows of the table]
  ConstTensorView b;  // [out, rank]; of a table [columns of the table, rank]
  std::string a_name;
  std::string b_name;
  bool is_embedding = false;  // lora_embedding_A and lora_embedding_B
  // DoRA (Liu et al. 2024): the length of each row of W + scale B A, [out]. Data null: plain LoRA.
  ConstTensorView magnitude;
  std::string magnitude_name;
};

// A whole tensor of a module in an adapter's file.
struct WholeTensor {
  std::string path;  // of the module
  std::string leaf;  // "weight" or "bias"
  std::string name;  // of the tensor in the file
  ConstTensorView view;
};

// The base an adapter was trained on, as far as its files record it.
struct LoraOrigin {
  std::string base_model;  // name or path, as in PEFT
  // Only in adapters that Tandem trained; otherwise empty.
  std::string base_hash;  // Model::content_hash
  std::string compute;    // the dtype of its arithmetic: "f32" or "bf16"
  std::string weights;    // Model::weights_type: "bf16", "int4"
};

// A LoRA adapter in PEFT's files: adapter_config.json and adapter_model.safetensors. The tensors
// tell which modules have an adapter; the config tells the scale of A x. Config fields that would
// change the arithmetic in an unsupported way are refused. engine/model/adapter.h maps modules to
// weights of the base. Immutable; any thread.
class LoraAdapter {
 public:
  static constexpr int64_t kMaxRank = 4096;

  // Throws kNotFound / kDataLoss / kUnsupported naming file and field or tensor.
  static LoraAdapter Open(const std::filesystem::path& dir);
  // As Open, for a config text and weights already in memory; `name` is used in messages.
  static LoraAdapter FromParts(const std::string& name, const std::string& config,
                               SafetensorsFile weights);

  const std::string& name() const { return name_; }  // its directory, for messages
  const std::vector<LoraModule>& modules() const { return modules_; }  // by path
  // Trained copies that replace the base's (PEFT's modules_to_save), by name.
  const std::vector<WholeTensor>& saved() const { return saved_; }
  // The base's own weights of adapted tables and heads, which PEFT adds to its files.
  const std::vector<WholeTensor>& base_copies() const { return base_copies_; }
  // Entries of modules_to_save that no tensor has. PEFT ignores those that the base lacks.
  const std::vector<std::string>& saved_without_tensors() const { return saved_without_tensors_; }
  bool is_dora() const { return is_dora_; }
  // r, lora_alpha and use_rslora of the config; a module may have another rank or scale.
  int64_t rank() const { return rank_; }
  double alpha() const { return alpha_; }
  bool rank_stabilized() const { return rank_stabilized_; }
  // Entries of target_modules, as ends of paths, that no tensor matches. PEFT ignores entries that
  // the base does not have either.
  const std::set<std::string, std::less<>>& targets_without_tensors() const {
    return targets_without_tensors_;
  }
  const LoraOrigin& origin() const { return origin_; }
  // Throws kDataLoss when the weights' file was changed in place since Open.
  void CheckUnchanged() const;
  // SHA-256 (hex) over both files.
  const std::string& content_hash() const { return content_hash_; }

 private:
  LoraAdapter() = default;

  std::string name_;
  int64_t rank_ = 0;
  double alpha_ = 0;
  bool rank_stabilized_ = false;
  bool is_dora_ = false;
  std::shared_ptr<const SafetensorsFile> file_;  // the views borrow from it
  std::vector<LoraModule> modules_;
  std::vector<WholeTensor> saved_;
  std::vector<WholeTensor> base_copies_;
  std::vector<std::string> saved_without_tensors_;
  std::set<std::string, std::less<>> targets_without_tensors_;
  LoraOrigin origin_;
  std::string content_hash_;
};

// The content of adapter_config.json for an adapter that Tandem trained.
struct LoraConfig {
  std::string base_model;
  int64_t rank = 8;
  double alpha = 16;
  bool rank_stabilized = false;
  double dropout = 0;
  bool fan_in_fan_out = false;
  bool use_dora = false;
  std::vector<std::string> target_modules;        // paths of modules
  std::vector<std::string> modules_to_save = {};  // likewise
  std::map<std::string, int64_t> ranks = {};      // by path: other ranks than `rank`
  std::map<std::string, double> alphas = {};      // other alphas
};
std::string LoraConfigText(const LoraConfig& config);
// The metadata of adapter_model.safetensors, which PEFT ignores: the second half of LoraOrigin.
std::map<std::string, std::string> LoraMetadata(const std::string& base_hash, DType compute,
                                                const std::string& weights_type);

// Every name that target_modules may use for a module, the ends of its path: "a.b.c", "b.c" and
// "c". The views borrow from `path`.
std::vector<std::string_view> PathEnds(std::string_view path);

// Names of a module's two tensors in adapter_model.safetensors: those of a linear layer, or of a
// table of embeddings.
std::pair<std::string, std::string> LoraTensorNames(const std::string& path,
                                                    bool is_embedding = false);
std::string MagnitudeName(const std::string& path);
// The name of a tensor of modules_to_save; `leaf` is "weight" or "bias".
std::string SavedTensorName(const std::string& path, const std::string& leaf);

}  // namespace tandem::engine
