#include "convert/formats/formats.h"

#include <algorithm>
#include <array>
#include <utility>

#include "convert/formats/gguf/gguf.h"
#include "convert/formats/hf/hf.h"
#include "convert/formats/hf/native.h"
#include "convert/formats/maxtext/maxtext_writer.h"
#include "convert/formats/peft/peft.h"

namespace tandem::convert {
namespace {

constexpr std::array kFloats = {"f32", "bf16", "f16"};
constexpr std::array kBothLayouts = {"scanned", "unscanned"};

constexpr std::array kGgufDTypes = {"f32", "f16", "bf16", "q8_0", "q4_0"};

constexpr std::array kPeftDTypes = {"f32"};

constexpr std::array kMaxTextDTypes = {"f32", "bf16"};

constexpr std::array kFormats = {
    Format{.name = "hf",
           .dtypes = kFloats,
           .casts_source = true,
           .write = WriteHf,
           .open = OpenHf,
           .supports_resume = true},
    Format{.name = "native",
           .dtypes = kFloats,
           .casts_source = true,
           .write = WriteNative,
           .open = OpenNative,
           .layouts = kBothLayouts,
           .supports_resume = true,
           .keeps_state = true},
    Format{.name = "native-params",
           .dtypes = kFloats,
           .casts_source = true,
           .write = WriteNativeParams,
           .open = OpenNative,
           .supports_resume = true},
    Format{.name = "gguf",
           .dtypes = kGgufDTypes,
           .casts_source = false,
           .write = WriteGguf,
           .open = OpenGguf,
           .file_suffix = ".gguf",
           .compare = CompareWithGguf,
           .supports_resume = true},
    Format{.name = "maxtext",
           .dtypes = kMaxTextDTypes,
           .casts_source = true,
           .write = WriteMaxText,
           .open = OpenWrittenMaxText,
           .layouts = kBothLayouts,
           .compare = CompareMaxText,
           .supports_resume = true},
    Format{.name = "peft",
           .dtypes = kPeftDTypes,
           .casts_source = false,
           .write = WritePeft,
           .open = OpenPeft,
           .is_difference = true},
};

// Alias -> format name.
constexpr std::array kAliases = {std::pair{"scanned", "native"},
                                 std::pair{"params", "native-params"}};

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
  for (const auto& [alias, format] : kAliases) {
    if (name == alias) name = format;
  }
  const auto found = std::find_if(kFormats.begin(), kFormats.end(),
                                  [&](const Format& format) { return format.name == name; });
  return found == kFormats.end() ? nullptr : &*found;
}

std::span<const Format> Formats() { return kFormats; }

}  // namespace tandem::convert
