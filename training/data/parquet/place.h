#pragma once

#include <string>

#include "engine/base/error.h"

namespace tandem::training {

// A place in a file, for messages: "train.parquet: row group 3: column 'text'".
struct ParquetPlace {
  std::string text;

  // The file contradicts itself or is truncated.
  [[noreturn]] void Broken(const std::string& what) const {
    throw Error(ErrorCode::kDataLoss, text + ": " + what);
  }
  // The file is valid but uses a feature that this reader lacks.
  [[noreturn]] void Refuse(const std::string& what) const { throw Refusal(what); }
  Error Refusal(const std::string& what) const {
    return {ErrorCode::kUnsupported, text + ": " + what};
  }
};

}  // namespace tandem::training
