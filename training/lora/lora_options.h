#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tandem::training {

// Distribution of a fresh A. B is zero, so that a fresh adapter changes nothing.
enum class LoraInit {
  kKaimingUniform,  // PEFT's: uniform within 1 / sqrt(in)
  kHeUniform,       // qwix's: uniform within sqrt(6 / in)
};

// Type of the frozen base.
enum class LoraBase {
  kAuto,  // precision.compute, or the file's own integer blocks
  kF32,
  kBF16,
  kInt8,  // integer blocks (QLoRA); compute is bf16
  kInt4,
};

// Reaction when an alternative of lora.module_path matches no layer.
enum class Unmatched {
  kError,
  kNote,  // trains the matched layers and reports the rest
};

// Trains adapters (LoRA) instead of the model's own weights.
struct LoraOptions {
  bool enable = false;
  int64_t rank = 16;
  double alpha = 32;             // A x is multiplied by alpha / rank
  bool rank_stabilized = false;  // by alpha / sqrt(rank) instead
  bool use_dora = false;         // also trains the length of each row (engine/ops/dora.h)
  bool embeddings = false;       // module_path may name tables of embeddings and the head
  std::vector<std::string> modules_to_save;  // whole trained copies, by path or its end
  // PEFT's rank_pattern and alpha_pattern: other values for modules whose path is the name or ends
  // with it. The first match counts.
  std::vector<std::pair<std::string, double>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  // Regular expression on the paths of linear layers ("model.layers.0.mlp.up_proj"). Empty: all but
  // the routers of experts, and the head and embeddings only with `embeddings`.
  std::string module_path;
  bool full_match = false;  // match the whole path instead of a part
  Unmatched unmatched = Unmatched::kError;
  LoraInit init = LoraInit::kKaimingUniform;
  double dropout = 0;  // on the adapter's input, while training
  LoraBase base = LoraBase::kAuto;
  std::filesystem::path load_path;  // PEFT directory to continue from; it fixes rank to init
  bool export_merged = false;       // also exports the model with the adapter merged in
};

}  // namespace tandem::training
