#include "engine/hub/api.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/hub/cache.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxInfoBytes = size_t{32} << 20;
constexpr int64_t kMaxFileBytes = int64_t{1} << 50;

bool IsHex(std::string_view text, size_t n_digits) {
  return text.size() == n_digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Names that leave the snapshot folder, are empty, or hold control characters or backslashes.
bool IsHostileName(std::string_view name) {
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\';
  });
  return has_control || name.empty() || name.front() == '/' || name == ".." ||
         name.starts_with("../") || name.find("/../") != std::string_view::npos ||
         name.ends_with("/..");
}

RepoFile ParseFile(const Json& entry, const std::string& source) {
  RepoFile file;
  file.name = JsonStringOr(entry, "rfilename", "", source);
  if (IsHostileName(file.name)) {
    throw Error(ErrorCode::kDataLoss, source + ": the file name '" +
                                          EscapeJson(file.name.substr(0, 80)) +
                                          "' points outside the model's folder");
  }
  if (entry.contains("size") && !entry["size"].is_null()) {
    file.size = static_cast<uint64_t>(JsonInt(entry, "size", 0, kMaxFileBytes, source));
  }
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    file.sha256 = JsonStringOr(*lfs, "sha256", "", source);
    if (file.sha256.empty()) file.sha256 = JsonStringOr(*lfs, "oid", "", source);
    if (!file.sha256.empty() && !IsHex(file.sha256, 64)) {
      throw Error(ErrorCode::kDataLoss, source + ": lfs.sha256 must be 64 hex digits");
    }
  } else {
    file.git_sha1 = JsonStringOr(entry, "blobId", "", source);
    if (!file.git_sha1.empty() && !IsHex(file.git_sha1, 40)) {
      throw Error(ErrorCode::kDataLoss, source + ": blobId must be 40 hex digits");
    }
  }
  return file;
}

std::optional<uint64_t> ParseSize(std::string_view text) {
  uint64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size() ||
      value > static_cast<uint64_t>(kMaxFileBytes)) {
    return std::nullopt;
  }
  return value;
}

Url MustParse(const std::string& text) {
  std::optional<Url> url = ParseUrl(text);
  if (!url)
    throw Error(ErrorCode::kInvalidArgument, "the address '" + EscapeJson(text.substr(0, 200)) +
                                                 "' is not a URL: check HF_ENDPOINT");
  return std::move(*url);
}

// Calls `function` and retries its transient faults.
template <typename Function>
auto WithRetries(HttpClient& client, const Patience& patience, const Function& function) {
  Backoff backoff(client.shared(), patience);
  std::optional<decltype(function())> result;
  while (const auto fault = ExceptionOf<TransientFault>([&] { result = function(); })) {
    backoff.Wait(*fault);
  }
  return *std::move(result);
}

// Value of the field in the last response that has it, redirects included.
std::string_view FindInChain(const HttpClient::Answer& answer, std::string_view name) {
  if (const auto value = answer.head.Find(name); !value.empty()) return value;
  for (auto it = answer.redirects.rbegin(); it != answer.redirects.rend(); ++it) {
    if (const auto value = it->Find(name); !value.empty()) return value;
  }
  return {};
}

[[noreturn]] void ThrowContradiction(const std::string& name, const char* what,
                                     const std::string& listed, const std::string& served) {
  throw Error(ErrorCode::kDataLoss, EscapeJson(name) + ": the hub lists " + what + " " + listed +
                                        " but serves " + what + " " + served);
}

}  // namespace

const RepoFile* RepoInfo::Find(const std::string& name) const {
  const auto it =
      std::lower_bound(files.begin(), files.end(), name,
                       [](const RepoFile& file, const std::string& n) { return file.name < n; });
  return it != files.end() && it->name == name ? &*it : nullptr;
}

std::string ResolveUrlOf(const HubOptions& options, const std::string& repo,
                         const std::string& revision, const std::string& name) {
  std::string url = options.endpoint + "/" + repo + "/resolve/" + PercentEncode(revision);
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    url += "/" + PercentEncode(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return url;
}

RepoInfo ParseRepoInfo(std::string_view text, const std::string& source) {
  const Json json = ParseUntrustedJson(text, source);
  if (!json.is_object()) throw Error(ErrorCode::kDataLoss, source + ": must be a JSON object");
  RepoInfo info;
  info.commit = JsonStringOr(json, "sha", "", source);
  if (!IsCommit(info.commit)) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'sha' must be a commit of 40 hex digits");
  }
  const auto siblings = json.find("siblings");
  if (siblings == json.end() || !siblings->is_array()) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'siblings' must be an array");
  }
  for (const Json& entry : *siblings) {
    if (!entry.is_object()) {
      throw Error(ErrorCode::kDataLoss, source + ": every sibling must be an object");
    }
    RepoFile file = ParseFile(entry, source);
    if (IsSafeFileName(file.name)) info.files.push_back(std::move(file));
  }
  std::sort(info.files.begin(), info.files.end(),
            [](const RepoFile& a, const RepoFile& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(info.files.begin(), info.files.end(),
                         [](const RepoFile& a, const RepoFile& b) { return a.name == b.name; });
  if (twice != info.files.end()) {
    throw Error(ErrorCode::kDataLoss,
                source + ": the file " + EscapeJson(twice->name) + " is listed twice");
  }
  return info;
}

void ThrowHubStatus(const HttpHead& head, const Url& url, const HubReference& reference,
                    const HubOptions& options) {
  const std::string_view code = head.Find("x-error-code");
  const std::string_view said = head.Find("x-error-message");
  const std::string page = options.endpoint + "/" + reference.repo;
  const std::string tokens = options.endpoint + "/settings/tokens";
  const bool has_token = !options.token.empty();
  if (code == "GatedRepo") {
    throw Error(
        ErrorCode::kPermissionDenied,
        reference.repo + " is a gated model: accept its licence at " + page +
            (has_token ? " with the account of your token (approval can take a while), and allow "
                         "the token to read gated repositories (" +
                             tokens + ")"
                       : ", then set HF_TOKEN to a token of that account (" + tokens + ")"));
  }
  if (code == "RevisionNotFound") {
    throw Error(ErrorCode::kNotFound, reference.repo + " has no revision '" + reference.revision +
                                          "'; see " + page + "/tree/main");
  }
  if (code == "EntryNotFound") {
    throw Error(ErrorCode::kNotFound, url.Display() + " does not exist, although the hub lists it");
  }
  if (head.status == 401 && has_token &&
      (said.starts_with("Invalid credentials") || said.starts_with("Invalid username"))) {
    throw Error(ErrorCode::kUnauthenticated,
                "the hub rejects the token (from HF_TOKEN or the file HF_HOME/token): create a new "
                "one at " +
                    tokens);
  }
  if (code == "RepoNotFound" || (head.status == 401 && code.empty())) {
    throw Error(ErrorCode::kNotFound,
                options.endpoint + " has no model " + reference.repo +
                    ", or the model is private: check the name" +
                    (has_token ? " and the token's permissions"
                               : ", or set HF_TOKEN to a token with access (" + tokens + ")"));
  }
  ThrowHttpStatus(head, url, options);
}

RepoInfo FetchRepoInfo(HttpClient& client, const HubReference& reference,
                       const Patience& patience) {
  const HubOptions& options = client.shared().options;
  const Url url = MustParse(options.endpoint + "/api/models/" + reference.repo + "/revision/" +
                            PercentEncode(reference.revision) + "?blobs=true");
  return WithRetries(client, patience, [&] {
    HttpClient::Request request;
    request.url = url;
    const HttpClient::Answer answer = client.SendFollowing(std::move(request));
    if (answer.head.status != 200) ThrowHubStatus(answer.head, answer.url, reference, options);
    RepoInfo info = ParseRepoInfo(client.ReadWholeBody(kMaxInfoBytes), url.Display());
    // A reference that names a commit must get exactly that commit.
    if (IsCommit(reference.revision) && info.commit != reference.revision) {
      throw Error(ErrorCode::kDataLoss, url.Display() + ": requested commit " + reference.revision +
                                            ", but the hub returned commit " + info.commit);
    }
    return info;
  });
}

FileLocation LocateFile(HttpClient& client, const HubReference& reference,
                        const std::string& commit, const RepoFile& file) {
  const HubOptions& options = client.shared().options;
  const Url url = MustParse(ResolveUrlOf(options, reference.repo, commit, file.name));
  return WithRetries(client, Patience(options), [&] {
    HttpClient::Request request;
    request.method = "HEAD";
    request.url = url;
    const HttpClient::Answer answer = client.SendFollowing(std::move(request), true);
    if (answer.head.status >= 400) ThrowHubStatus(answer.head, answer.url, reference, options);

    FileLocation location;
    location.is_elsewhere = answer.head.status != 200;
    location.url = location.is_elsewhere ? answer.url : url;
    // A hub that stores large files elsewhere describes them in `x-linked-` fields.
    const std::string_view linked_etag = FindInChain(answer, "x-linked-etag");
    const std::string_view etag = linked_etag.empty() ? FindInChain(answer, "etag") : linked_etag;
    BlobIdentity& identity = location.identity;
    if (!etag.empty()) {
      identity.name = BlobNameOfEtag(etag);
    } else {
      identity.name = file.sha256.empty() ? file.git_sha1 : file.sha256;
    }
    if (identity.name.empty()) {
      throw Error(
          ErrorCode::kDataLoss,
          url.Display() + ": the response has no ETag, which the cache needs to name the file");
    }

    if (!file.sha256.empty()) {
      if (IsHex(identity.name, 64) && identity.name != file.sha256) {
        ThrowContradiction(file.name, "sha256", file.sha256, identity.name);
      }
      identity.hash = BlobIdentity::Hash::kSha256;
      identity.hex = file.sha256;
    } else if (!file.git_sha1.empty()) {
      identity.hash = BlobIdentity::Hash::kGitSha1;
      identity.hex = file.git_sha1;
    } else if (IsHex(identity.name, 64) || IsHex(identity.name, 40)) {
      identity.hash =
          identity.name.size() == 64 ? BlobIdentity::Hash::kSha256 : BlobIdentity::Hash::kGitSha1;
      identity.hex = identity.name;
    }

    std::optional<uint64_t> size = ParseSize(FindInChain(answer, "x-linked-size"));
    if (!size && !location.is_elsewhere) size = ParseSize(answer.head.Find("content-length"));
    if (size && file.size && *size != *file.size) {
      ThrowContradiction(file.name, "size", std::to_string(*file.size), std::to_string(*size));
    }
    if (!size) size = file.size;
    if (!size)
      throw Error(ErrorCode::kDataLoss, url.Display() + ": the hub reports no size for the file");
    identity.size = *size;
    return location;
  });
}

}  // namespace tandem::engine
