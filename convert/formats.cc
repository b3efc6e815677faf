#include "convert/formats.h"

#include <algorithm>
#include <array>

namespace tandem::convert {
namespace {

constexpr std::array kHfDTypes = {"f32", "bf16", "f16"};

constexpr std::array kFormats = {
    Format{"hf", kHfDTypes, /*casts_source=*/true, WriteHf, OpenHf},
};

}  // namespace

bool Format::HasDType(std::string_view dtype) const {
  return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
}

std::string Format::DTypeNames() const {
  std::string names;
  for (const char* dtype : dtypes) names += (names.empty() ? "" : ", ") + std::string(dtype);
  return names;
}

const Format* FindFormat(std::string_view name) {
  const auto found = std::find_if(kFormats.begin(), kFormats.end(),
                                  [&](const Format& format) { return format.name == name; });
  return found == kFormats.end() ? nullptr : &*found;
}

std::string FormatNames() {
  std::string names;
  for (const Format& format : kFormats) {
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  }
  return names;
}

}  // namespace tandem::convert
