#include "engine/hub/describe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/url.h"
#include "engine/hub/api.h"
#include "engine/hub/download.h"
#include "engine/hub/http_client.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kMostTextBytes = uint64_t{64} << 20;
// Most headers of safetensors files are smaller; the rest takes a second request.
constexpr uint64_t kFirstBytes = uint64_t{256} << 10;
// As SafetensorsFile::kMaxHeaderBytes.
constexpr uint64_t kMostHeaderBytes = uint64_t{100} << 20;
// The largest vocabularies take about 20 MB in GGUF files.
constexpr uint64_t kGgufHeaderBytes = uint64_t{48} << 20;
constexpr size_t kMostFiles = 4096;

// The first `bytes` of a file, or all of a smaller one.
std::string FetchHead(HttpClient& client, const HubReference& reference, const std::string& commit,
                      const std::string& name, uint64_t bytes) {
  const HubOptions& options = client.shared().options;
  const std::string text = ResolveUrlOf(options, reference.repo, commit, name);
  const std::optional<Url> url = ParseUrl(text);
  if (!url) throw Error(ErrorCode::kInvalidArgument, "HF_ENDPOINT makes no URL: " + text);
  Backoff backoff(client.shared());
  std::string head;
  const auto fetch = [&] {
    head.clear();
    HttpClient::Request request;
    request.url = *url;
    request.fields = {{"Range", "bytes=0-" + std::to_string(bytes - 1)}};
    const HttpClient::Answer answer = client.SendFollowing(std::move(request));
    if (answer.head.status != 200 && answer.head.status != 206) {
      ThrowHubStatus(answer.head, answer.url, reference, options);
    }
    // A server without ranges sends the whole file; the next request drops the rest.
    std::string buffer(64 << 10, '\0');
    while (head.size() < bytes) {
      const size_t read = client.ReadBody(std::span(buffer.data(), buffer.size()));
      if (read == 0) break;
      head.append(buffer, 0, std::min<size_t>(read, bytes - head.size()));
    }
  };
  while (const auto fault = ExceptionOf<TransientFault>(fetch)) backoff.Wait(*fault);
  return head;
}

uint64_t SizeOf(const RepoFile& file) {
  if (!file.size) {
    throw Error(ErrorCode::kDataLoss, file.name + ": the hub reports no size for the file");
  }
  return *file.size;
}

RemoteFile FetchText(HttpClient& client, const HubReference& reference, const RepoInfo& info,
                     const RepoFile& file) {
  const uint64_t bytes = SizeOf(file);
  if (bytes == 0 || bytes > kMostTextBytes) {
    throw Error(ErrorCode::kDataLoss,
                file.name + ": a size of " + std::to_string(bytes) + " bytes is not supported");
  }
  std::string text = FetchHead(client, reference, info.commit, file.name, bytes);
  return {file.name, std::move(text), bytes};
}

RemoteFile FetchSafetensorsHeader(HttpClient& client, const HubReference& reference,
                                  const RepoInfo& info, const RepoFile& file) {
  const uint64_t bytes = SizeOf(file);
  std::string head = FetchHead(client, reference, info.commit, file.name,
                               std::max<uint64_t>(std::min(bytes, kFirstBytes), 1));
  static_assert(std::endian::native == std::endian::little);
  uint64_t length = 0;
  if (head.size() < sizeof(length)) {
    throw Error(ErrorCode::kDataLoss, file.name + ": is too short for a safetensors file");
  }
  std::memcpy(&length, head.data(), sizeof(length));
  if (length > kMostHeaderBytes) {
    throw Error(ErrorCode::kDataLoss, file.name + ": a header of " + std::to_string(length) +
                                          " bytes is too long for a safetensors file");
  }
  const uint64_t whole = std::min(bytes, sizeof(length) + length);
  if (whole > head.size()) head = FetchHead(client, reference, info.commit, file.name, whole);
  head.resize(static_cast<size_t>(std::min<uint64_t>(whole, head.size())));
  return {file.name, std::move(head), bytes};
}

const RepoFile& MustFind(const RepoInfo& info, const HubReference& reference,
                         const std::string& name) {
  const RepoFile* file = info.Find(name);
  if (file == nullptr) {
    throw Error(ErrorCode::kDataLoss,
                reference.Text() + " names " + name + ", which the repository does not have");
  }
  return *file;
}

}  // namespace

std::vector<RemoteFile> DescribeHubModel(const HubReference& reference, const HubOptions& options) {
  HttpShared shared(options, std::stop_token());
  HttpClient client(shared);
  const RepoInfo info = FetchRepoInfo(client, reference, Patience(options));
  std::vector<std::string> names;
  for (const RepoFile& file : info.files) names.push_back(file.name);
  FileSelection selection = SelectFiles(reference, names);
  if (!reference.gguf.empty()) {
    if (selection.weights.size() != 1) {
      throw Error(ErrorCode::kUnsupported,
                  reference.Text() + " has " + std::to_string(selection.weights.size()) +
                      " files, which are described only after `tandem pull`");
    }
    const RepoFile& file = MustFind(info, reference, selection.weights.front());
    const uint64_t bytes = SizeOf(file);
    return {{file.name,
             FetchHead(client, reference, info.commit, file.name,
                       std::max<uint64_t>(std::min(bytes, kGgufHeaderBytes), 1)),
             bytes}};
  }
  std::vector<RemoteFile> files;
  for (const char* text : {"config.json", kIndexFile}) {
    const std::string name(text);
    if (info.Find(name) == nullptr) continue;
    files.push_back(FetchText(client, reference, info, *info.Find(name)));
    if (name == kIndexFile) selection.weights = ShardsOfIndex(files.back().head, name);
  }
  if (selection.weights.size() > kMostFiles) {
    throw Error(ErrorCode::kDataLoss,
                reference.Text() + " has more than " + std::to_string(kMostFiles) + " files");
  }
  std::vector<RemoteFile> weights(selection.weights.size());
  ForEachInParallel(shared, weights.size(), [&](HttpClient& own_client, size_t i) {
    weights[i] = FetchSafetensorsHeader(own_client, reference, info,
                                        MustFind(info, reference, selection.weights[i]));
  });
  files.insert(files.end(), std::make_move_iterator(weights.begin()),
               std::make_move_iterator(weights.end()));
  return files;
}

}  // namespace tandem::engine
