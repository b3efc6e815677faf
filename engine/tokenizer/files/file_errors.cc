#include "engine/tokenizer/files/file_errors.h"

#include "engine/base/error.h"

namespace tandem::engine {

void ThrowBroken(const std::string& file, std::string_view field, std::string_view what) {
  throw Error(ErrorCode::kDataLoss, file + ": " + std::string(field) + " " + std::string(what));
}

void ThrowUnsupported(const std::string& file, std::string_view field, std::string_view what) {
  throw Error(ErrorCode::kUnsupported, file + ": " + std::string(field) + " " + std::string(what));
}

}  // namespace tandem::engine
