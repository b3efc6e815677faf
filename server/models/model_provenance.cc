#include "server/models/model_provenance.h"

#include <nlohmann/json.hpp>

#include "convert/work/provenance.h"
#include "engine/base/attempt.h"
#include "engine/base/log.h"

namespace tandem::server {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string ModelProvenance(const std::string& id, const fs::path& path,
                            const std::string& content_sha256) {
  std::string text;
  const auto error = Attempt([&] {
    text = convert::ReadProvenance(path);
    if (text.empty() || content_sha256.empty()) return;
    Json provenance = Json::parse(text);
    provenance["hashes"]["content_sha256"] = content_sha256;
    text = provenance.dump();
  });
  if (!error) return text;
  spdlog::warn("provenance_not_read model={} reason=\"{}\"", id, error->what());
  return "";
}

}  // namespace tandem::server
