#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tandem::training {

// From what A begins; B begins with zeros, so that a fresh adapter changes nothing.
enum class LoraInit {
  kKaimingUniform,  // PEFT's: uniform within 1 / sqrt(in)
  kHeUniform,       // qwix's: uniform within sqrt(6 / in)
};

// What the frozen base is held in.
enum class LoraBase {
  kAuto,  // what precision.compute says; a file's own blocks of integers where it has them
  kF32,
  kBF16,
  kInt8,  // blocks of integers (QLoRA); compute is bf16
  kInt4,
};

// What becomes of a run some of whose lora.module_path, an alternative of it, matches no layer.
enum class Unmatched {
  kError,
  kNote,  // goes on with what the others match, and says so
};

// Adapters (LoRA) instead of the model's own weights.
struct LoraOptions {
  bool enable = false;
  int64_t rank = 16;
  double alpha = 32;             // A x is multiplied with alpha / rank
  bool rank_stabilized = false;  // with alpha / sqrt(rank)
  // Regular expression on the paths of linear layers, "model.layers.0.mlp.up_proj"; empty: all but
  // the head.
  std::string module_path;
  bool full_match = false;  // of the whole path instead of a part
  Unmatched unmatched = Unmatched::kError;
  LoraInit init = LoraInit::kKaimingUniform;
  double dropout = 0;  // on what the adapter reads, while training
  LoraBase base = LoraBase::kAuto;
  std::filesystem::path load_path;  // a PEFT directory to go on from; rank to init are its own
  bool export_merged = false;       // besides the adapter, the model with it merged in
};

}  // namespace tandem::training
