#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::convert {

inline constexpr double kMostKl = 1e6;  // nats; finite logits stay far below

// Default size of a weight file in a target that may have several.
inline constexpr int64_t kShardBytes = int64_t{1} << 30;

// Limits of LoRA adapters (engine/adapter/lora_adapter.h).
inline constexpr int64_t kMostRank = 4096;
inline constexpr double kLeastAlpha = 1e-6;
inline constexpr double kMostAlpha = 1e6;

// Settings for MaxText checkpoints (convert/formats/maxtext/maxtext.h).
struct MaxTextSpec {
  bool ocdbt = true;  // Orbax's use_ocdbt
  int zarr = 3;       // 2 or 3: Orbax's use_zarr3
  // "llama3-8b": q and k in Hugging Face's order, as MaxText's converter leaves them
  std::string model;
  bool all_bf16 = false;  // also writes parameters in bf16 that bf16 would damage; default f32
};

// Settings of the format peft, which extracts an adapter from a model and its base.
struct PeftSpec {
  int64_t rank = 0;  // of every module; 0: not given
  double alpha = 0;  // B A is scaled by alpha / rank; 0: alpha = rank
};

// One conversion: source, target format and options, target.
struct ConvertSpec {
  std::filesystem::path source;  // its kind is detected from its files (convert/sources/source.h)
  // For an adapter: the directory of the model it adapts. For the format peft: the directory or
  // file of the model that the source was tuned from.
  std::filesystem::path base;
  std::string format = "hf";  // convert/formats/formats.h
  std::string dtype;          // "f32", "bf16", …; empty: as in the source
  std::string layout;  // "scanned" (layers stacked), "unscanned"; empty: the format's default
  int64_t max_shard_bytes = kShardBytes;  // largest weight file, where a format splits
  MaxTextSpec maxtext;                    // for a MaxText source or target
  PeftSpec peft;
  std::filesystem::path target;  // directory to create, or a file for some formats
  bool overwrite = false;        // replaces an existing target
  bool verify = true;            // reads the target back and compares it
  bool certificate = true;       // runs source and target and compares their logits
  std::optional<double> max_kl;  // nats: refuses a result above it at any position
};

// The spec as a JSON object, in which a job's process receives it. Parsing throws kDataLoss naming
// `source` and the fault, also for a field of the wrong type or range, and kInvalidArgument without
// source or target. It ignores unknown fields.
std::string ConvertSpecJson(const ConvertSpec& spec);
ConvertSpec ParseConvertSpec(std::string_view json, const std::string& source);

}  // namespace tandem::convert
