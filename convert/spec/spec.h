#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::convert {

inline constexpr double kMostKl = 1e6;  // nats: finite logits stay far below

// Of a file of weights that a checkpoint of ours has several of, unless asked otherwise.
inline constexpr int64_t kShardBytes = int64_t{1} << 30;

// Of the format peft; what adapters may have (engine/adapter/lora_adapter.h).
inline constexpr int64_t kMostRank = 4096;
inline constexpr double kLeastAlpha = 1e-6;
inline constexpr double kMostAlpha = 1e6;

// Of checkpoints of MaxText (maxtext.h).
struct MaxTextSpec {
  bool ocdbt = true;      // what Orbax calls use_ocdbt
  int zarr = 3;           // 2 or 3: what Orbax calls use_zarr3
  std::string model;      // "llama3-8b": q and k as MaxText's own converter of Llama 3 has them
  bool all_bf16 = false;  // in bf16 also what bf16 damages, which else stays in f32
};

// Of the format peft: the adapter that is made of a model and its base.
struct PeftSpec {
  int64_t rank = 0;  // of every module; 0: not given
  double alpha = 0;  // over rank what B A is multiplied with; 0: as rank, so that it is 1
};

// One conversion: from where, into what, to where.
struct ConvertSpec {
  std::filesystem::path source;  // what it is, its files say (source.h)
  // Of an adapter: the directory of the model that it adapts. Of the format peft: that, or the
  // file, of the model that the source was tuned from.
  std::filesystem::path base;
  std::string format = "hf";              // formats.h
  std::string dtype;                      // "f32", "bf16", …; empty: as the source has it
  std::string layout;                     // "scanned", "unscanned"; empty: the format's own
  int64_t max_shard_bytes = kShardBytes;  // of one file of weights, where there may be several
  MaxTextSpec maxtext;                    // of a source or target of MaxText
  PeftSpec peft;
  std::filesystem::path target;  // a directory, or of some formats a file, that is made
  bool overwrite = false;        // a model that is there already is replaced
  bool verify = true;            // what was written is read again and compared
  bool certificate = true;       // source and target are both run, and compared by their logits
  std::optional<double> max_kl;  // of any position, in nats: what lies farther away is not kept
};

// As the process of a job reads it: a JSON object of these names. Parsing throws kInvalidArgument
// naming `source` and the field.
std::string ConvertSpecJson(const ConvertSpec& spec);
ConvertSpec ParseConvertSpec(std::string_view json, const std::string& source);

}  // namespace tandem::convert
