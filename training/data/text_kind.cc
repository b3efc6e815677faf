#include "training/data/text_kind.h"

#include "engine/base/error.h"

namespace tandem::training {
namespace {

constexpr size_t kSniffedBytes = 4096;

struct Kind {
  std::string_view magic;
  const char* what;
};
constexpr Kind kOtherKinds[] = {
    {"PAR1", "a Parquet file"},
    {"\x1f\x8b", "compressed (gzip); unpack it first"},
    {"\x28\xb5\x2f\xfd", "compressed (zstd); unpack it first"},
    {"BZh", "compressed (bzip2); unpack it first"},
    {"\xFD"
     "7zXZ",
     "compressed (xz); unpack it first"},
    {"PK\x03\x04", "a zip archive; unpack it first"},
    {"\xFF\xFE", "UTF-16; convert it to UTF-8"},
    {"\xFE\xFF", "UTF-16; convert it to UTF-8"},
};

}  // namespace

void RefuseOtherKinds(std::string_view text, const std::string& name, const std::string& wanted) {
  for (const Kind& kind : kOtherKinds) {
    if (!text.starts_with(kind.magic)) continue;
    throw Error(ErrorCode::kDataLoss, name + ": not " + wanted + ", the file is " + kind.what);
  }
  if (text.substr(0, kSniffedBytes).find('\0') != std::string_view::npos) {
    throw Error(ErrorCode::kDataLoss, name + ": not " + wanted + ", the file is binary");
  }
}

}  // namespace tandem::training
