#include "server/jobs/portable_spec.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace tandem::server {
namespace {

// The beginning of a JSON string with a path below the directory.
std::string BeginOfString(const std::filesystem::path& data_dir) {
  std::string text = nlohmann::json(data_dir.string()).dump();
  text.back() = '/';
  return text;
}

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; (at = text.find(from)) != std::string_view::npos;) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

std::string BeginWithMark() { return "\"" + std::string(kDataDirMark) + "/"; }

}  // namespace

std::string PortableSpec(std::string_view spec_json, const std::filesystem::path& data_dir) {
  if (spec_json.find(kDataDirMark) != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "spec must not contain '" + std::string(kDataDirMark) + "'")
        .WithParam("spec");
  }
  return Replaced(spec_json, BeginOfString(data_dir), BeginWithMark());
}

std::string LocalSpec(std::string_view portable, const std::filesystem::path& data_dir) {
  return Replaced(portable, BeginWithMark(), BeginOfString(data_dir));
}

}  // namespace tandem::server
