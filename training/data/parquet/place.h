#pragma once

#include <string>

#include "engine/base/error.h"

namespace tandem::training {

// Where in a file something is, for messages: "train.parquet: row group 3: column 'text'".
struct ParquetPlace {
  std::string text;

  // The file contradicts itself or is cut off.
  [[noreturn]] void Broken(const std::string& what) const {
    throw Error(ErrorCode::kDataLoss, text + ": " + what);
  }
  // The file is well, but this reader does not have what it asks for.
  [[noreturn]] void Refuse(const std::string& what) const { throw Refusal(what); }
  Error Refusal(const std::string& what) const {
    return {ErrorCode::kUnsupported, text + ": " + what};
  }
};

}  // namespace tandem::training
