#include "convert/formats.h"

#include <algorithm>
#include <array>

namespace tandem::convert {
namespace {

constexpr std::array kHfDTypes = {"f32", "bf16", "f16"};

constexpr std::array kFormats = {
    Format{"hf", kHfDTypes, /*casts_source=*/true, WriteHf, OpenHf},
};

bool Has(std::span<const char* const> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string Listed(std::span<const char* const> names) {
  std::string list;
  for (const char* name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

}  // namespace

bool Format::HasDType(std::string_view dtype) const { return Has(dtypes, dtype); }
bool Format::HasLayout(std::string_view layout) const { return Has(layouts, layout); }
std::string Format::DTypeNames() const { return Listed(dtypes); }
std::string Format::LayoutNames() const { return Listed(layouts); }

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
