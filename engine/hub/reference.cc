#include "engine/hub/reference.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

constexpr size_t kMaxRepoBytes = 128;
constexpr size_t kMaxRevisionBytes = 200;
constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxPartBytes = 200;  // leaves room for suffixes such as ".incomplete"
constexpr size_t kMaxParts = 5;
constexpr size_t kMaxListed = 8;  // names in a message

bool IsAlphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string Lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), Lower);
  return out;
}

// Checks ORG or NAME by the hub's rules.
bool IsRepoPart(std::string_view part) {
  if (part.empty() || !(IsAlphanumeric(part.front()) || part.front() == '_')) return false;
  if (part.back() == '.' || part.back() == '-' || part.ends_with(".git")) return false;
  if (part.find("--") != std::string_view::npos || part.find("..") != std::string_view::npos) {
    return false;
  }
  return std::all_of(part.begin(), part.end(),
                     [](char c) { return IsAlphanumeric(c) || c == '-' || c == '_' || c == '.'; });
}

// A branch, a tag, a commit or `refs/pr/N`. It becomes a path below refs/.
bool IsRevision(std::string_view text) {
  if (text.empty() || text.size() > kMaxRevisionBytes || !IsAlphanumeric(text.front())) {
    return false;
  }
  if (text.back() == '/' || text.back() == '.' || text.find("..") != std::string_view::npos ||
      text.find("//") != std::string_view::npos || text.find("/.") != std::string_view::npos) {
    return false;
  }
  return std::all_of(text.begin(), text.end(), [](char c) {
    return IsAlphanumeric(c) || c == '-' || c == '_' || c == '.' || c == '/' || c == '+';
  });
}

std::string Listed(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    out += (i == 0 ? "" : ", ") + EscapeJson(names[i]);
  }
  if (names.size() > kMaxListed) {
    out += " and " + std::to_string(names.size() - kMaxListed) + " more";
  }
  return out;
}

// How a model for embeddings pools hidden states (sentence-transformers).
constexpr std::string_view kPoolingFile = "1_Pooling/config.json";

bool IsText(std::string_view name) {
  static constexpr std::string_view kTexts[] = {
      "config.json",
      "generation_config.json",
      "tokenizer.json",
      "tokenizer_config.json",
      "tokenizer.model",
      "special_tokens_map.json",
      "added_tokens.json",
      "vocab.json",
      "merges.txt",
      "chat_template.jinja",
      "chat_template.json",
      "preprocessor_config.json",
      kAdapterFile,
      kIndexFile,
      "processor_config.json",
  };
  return std::find(std::begin(kTexts), std::end(kTexts), name) != std::end(kTexts) ||
         name.ends_with(".tiktoken");
}

bool IsPickle(std::string_view name) {
  return name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") ||
         name.ends_with(".ckpt") || name.ends_with(".pkl");
}

constexpr std::string_view kPartShape = "-00001-of-00001.gguf";

bool IsPartName(std::string_view name) {
  if (name.size() < kPartShape.size()) return false;
  const std::string_view end = name.substr(name.size() - kPartShape.size());
  for (size_t i = 0; i < kPartShape.size(); ++i) {
    const bool is_digit = kPartShape[i] >= '0' && kPartShape[i] <= '9';
    if (is_digit ? !(end[i] >= '0' && end[i] <= '9') : end[i] != kPartShape[i]) return false;
  }
  return true;
}

// "…-00002-of-00005.gguf" -> "…-*-of-00005.gguf"; returns other names unchanged.
std::string PartsPattern(const std::string& name) {
  if (!IsPartName(name)) return name;
  const size_t begin = name.size() - kPartShape.size();
  return name.substr(0, begin) + "-*" + name.substr(begin + 6);
}

// Vision projectors carry the model's tags in their names too.
bool IsProjector(std::string_view name) {
  const size_t slash = name.rfind('/');
  const std::string file = Lowered(slash == std::string_view::npos ? name : name.substr(slash + 1));
  return file.starts_with("mmproj");
}

// Whether the name contains the tag as a whole word: "Q4_K" does not match "Q4_K_M".
bool HasTag(std::string_view name, const std::string& tag) {
  const std::string lower = Lowered(name);
  for (size_t at = lower.find(tag); at != std::string::npos; at = lower.find(tag, at + 1)) {
    const auto continues = [](char c) { return IsAlphanumeric(c) || c == '_'; };
    const bool begins = at == 0 || !continues(lower[at - 1]);
    const size_t end = at + tag.size();
    if (begins && (end == lower.size() || !continues(lower[end]))) return true;
  }
  return false;
}

FileSelection SelectGguf(const HubReference& reference, const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names) {
    if (name.ends_with(".gguf")) all.push_back(name);
  }
  std::vector<std::string> found;
  if (reference.gguf.ends_with(".gguf")) {
    if (std::find(all.begin(), all.end(), reference.gguf) != all.end()) {
      found.push_back(reference.gguf);
    }
  } else {
    const std::string tag = Lowered(reference.gguf);
    for (const std::string& name : all) {
      if (!IsProjector(name) && HasTag(name, tag)) found.push_back(name);
    }
  }
  if (found.empty()) {
    throw Error(ErrorCode::kNotFound,
                reference.repo + " has no GGUF file '" + EscapeJson(reference.gguf) + "'; " +
                    (all.empty() ? "it has no GGUF files" : "it has " + Listed(all)));
  }
  const std::string pattern = PartsPattern(found.front());
  std::vector<std::string> parts;
  for (const std::string& name : all) {
    if (PartsPattern(name) == pattern) parts.push_back(name);
  }
  for (const std::string& name : found) {
    if (PartsPattern(name) != pattern) {
      throw Error(ErrorCode::kInvalidArgument, "'" + EscapeJson(reference.gguf) +
                                                   "' matches several files of " + reference.repo +
                                                   "; name one of them: " + Listed(found));
    }
  }
  std::sort(parts.begin(), parts.end());
  return {{}, std::move(parts)};
}

// Returns the path of a hub page without host and query; nullopt for other texts.
std::optional<std::string_view> PathOfPage(std::string_view text) {
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (text.starts_with(scheme)) text.remove_prefix(scheme.size());
  }
  for (const std::string_view host : {"huggingface.co/", "www.huggingface.co/", "hf.co/"}) {
    if (!text.starts_with(host)) continue;
    text.remove_prefix(host.size());
    text = text.substr(0, text.find_first_of("?#"));
    while (text.ends_with('/')) text.remove_suffix(1);
    return text;
  }
  return std::nullopt;
}

// Parses "ORG/NAME", "ORG/NAME/tree/REVISION" or "ORG/NAME/blob/REVISION/FILE.gguf".
std::optional<HubReference> ParsePage(std::string_view path) {
  const auto take = [&] {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    return part;
  };
  HubReference reference;
  const std::string_view org = take(), name = take(), kind = take();
  if (!IsRepoPart(org) || !IsRepoPart(name) || org.size() + name.size() >= kMaxRepoBytes) {
    return std::nullopt;
  }
  reference.repo = std::string(org) + "/" + std::string(name);
  if (kind.empty()) return reference;
  if (kind != "tree" && kind != "blob" && kind != "resolve") return std::nullopt;
  // A branch name with a slash needs the form ORG/NAME@REVISION.
  reference.revision = take();
  if (!IsRevision(reference.revision)) return std::nullopt;
  if (path.ends_with(".gguf") && IsSafeFileName(path)) reference.gguf = path;
  if (reference.gguf.empty() && !path.empty()) return std::nullopt;
  return reference;
}

}  // namespace

std::string HubReference::Text() const {
  return repo + (revision == "main" ? "" : "@" + revision) + (gguf.empty() ? "" : ":" + gguf);
}

std::optional<HubReference> ParseHubReference(std::string_view text) {
  if (const auto path = PathOfPage(text)) return ParsePage(*path);
  HubReference reference;
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    reference.gguf = text.substr(colon + 1);
    text = text.substr(0, colon);
    if (!IsSafeFileName(reference.gguf)) return std::nullopt;
  }
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    reference.revision = text.substr(at + 1);
    text = text.substr(0, at);
    if (!IsRevision(reference.revision)) return std::nullopt;
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || text.size() > kMaxRepoBytes) return std::nullopt;
  if (!IsRepoPart(text.substr(0, slash)) || !IsRepoPart(text.substr(slash + 1))) {
    return std::nullopt;
  }
  reference.repo = text;
  return reference;
}

bool IsSafeFileName(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '.') return false;
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\';
  });
  if (has_control) return false;
  size_t n_parts = 0;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPartBytes) return false;
    if (++n_parts > kMaxParts) return false;
    begin = end + 1;
  }
  return true;
}

bool IsCommit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

FileSelection SelectFiles(const HubReference& reference, const std::vector<std::string>& names) {
  if (!reference.gguf.empty()) return SelectGguf(reference, names);
  FileSelection selection;
  std::vector<std::string> pickles;
  std::vector<std::string> ggufs;
  bool has_single = false;
  for (const std::string& name : names) {
    if (name == kPoolingFile) selection.texts.emplace_back(name);
    // Other subfolders of a repository repeat the model for other programs.
    if (name.find('/') != std::string::npos) continue;
    if (IsText(name)) selection.texts.push_back(name);
    if (name.ends_with(".safetensors")) selection.weights.push_back(name);
    if (name.ends_with(".gguf")) ggufs.push_back(name);
    if (IsPickle(name)) pickles.push_back(name);
    has_single |= name == "model.safetensors";
  }
  // Same order as ModelDir: the single file wins over the index, the index over all other files.
  if (has_single) {
    selection.weights = {"model.safetensors"};
    std::erase(selection.texts, kIndexFile);
  }
  std::sort(selection.texts.begin(), selection.texts.end());
  std::sort(selection.weights.begin(), selection.weights.end());
  if (!selection.weights.empty()) return selection;

  if (!ggufs.empty()) {
    throw Error(ErrorCode::kNotFound,
                reference.repo + " has GGUF files but no safetensors weights; choose one as " +
                    reference.repo + ":FILE from: " + Listed(ggufs));
  }
  if (!pickles.empty()) {
    throw Error(ErrorCode::kUnsupported,
                reference.repo + " has only pickled weights (" + Listed(pickles) +
                    "), which are never fetched because reading them can run code; use a revision "
                    "or repository with safetensors");
  }
  throw Error(ErrorCode::kNotFound, reference.repo +
                                        " has no weights: no .safetensors file among its " +
                                        std::to_string(names.size()) + " files");
}

bool HasTokenizer(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name == "tokenizer.json" || name == "tokenizer.model" || name == "vocab.json" ||
           name.ends_with(".tiktoken");
  });
}

size_t PartsOfGguf(std::string_view name) {
  if (!IsPartName(name)) return 1;
  size_t n_parts = 0;
  for (const char c : name.substr(name.size() - std::string_view("00001.gguf").size(), 5)) {
    n_parts = n_parts * 10 + static_cast<size_t>(c - '0');
  }
  return n_parts;
}

std::vector<std::string> ShardsOfIndex(std::string_view index_text, const std::string& source) {
  const nlohmann::ordered_json index = ParseUntrustedJson(index_text, source);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'weight_map' must be an object with entries");
  }
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : std::string();
    if (!IsSafeFileName(name) || name.find('/') != std::string::npos ||
        !name.ends_with(".safetensors")) {
      throw Error(
          ErrorCode::kDataLoss,
          source + ": weight_map maps '" + EscapeJson(tensor) +
              "' to an invalid file; it must be the name of a .safetensors file without a folder");
    }
    shards.insert(name);
  }
  return {shards.begin(), shards.end()};
}

}  // namespace tandem::engine
