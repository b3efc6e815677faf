#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::engine {

// `quantization_config` of config.json as the readers need it.
struct QuantizationSettings {
  enum class Method : uint8_t { kFp8, kMxfp4, kAwq, kGptq, kCompressed, kBitsAndBytes };
  Method method = Method::kFp8;
  int bits = 4;            // kAwq, kGptq, kCompressed
  int64_t group_size = 0;  // inputs that share a scale; 0: all of a row. kAwq, kGptq, kCompressed
  // The size of a block that shares a scale. kFp8, kCompressed.
  int64_t block_rows = 128;
  int64_t block_columns = 128;
  bool zero_plus_one = false;  // kGptq: the file stores zero points minus 1 (version 1)
};

// `config` is `quantization_config`. Throws kUnsupported or kDataLoss naming `source` and the
// field.
QuantizationSettings ParseQuantization(const nlohmann::ordered_json& config,
                                       const std::string& source);

}  // namespace tandem::engine
