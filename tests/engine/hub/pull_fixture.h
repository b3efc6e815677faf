#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/hub/cache.h"
#include "engine/hub/pull.h"
#include "engine/io/atomic_write.h"
#include "engine/io/sha256.h"
#include "tests/engine/hub/hub_server.h"
#include "tests/support/temporary_dir.h"

// Shared by the tests of pulling: a hub whose replies each test defines.
namespace tandem::engine {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using tests::ChunkedReply;
using tests::HubReply;
using tests::HubRequest;
using tests::HubServer;
using tests::Reply;

inline const std::string kCommit(40, 'c');
inline const std::string kToken = "hf_secret_token";

inline std::string Sha256Text(const std::string& text) {
  return ToHex(Sha256Of(std::as_bytes(std::span(text))));
}

inline std::string Random(size_t n_bytes, uint32_t seed) {
  std::string bytes(n_bytes, '\0');
  for (char& c : bytes) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return bytes;
}

// The reply to a Range request: that part of `text`; without Range, all of it.
inline std::string RangeReply(const HubRequest& request, const std::string& text) {
  const auto it = request.fields.find("range");
  if (it == request.fields.end()) return Reply(200, "ETag: \"cdn\"\r\n", text);
  size_t first = 0;
  size_t last = 0;
  std::sscanf(it->second.c_str(), "bytes=%zu-%zu", &first, &last);
  last = std::min(last, text.size() - 1);
  return Reply(206,
               "ETag: \"cdn\"\r\nContent-Range: bytes " + std::to_string(first) + "-" +
                   std::to_string(last) + "/" + std::to_string(text.size()) + "\r\n",
               text.substr(first, last - first + 1));
}

// A hub with one model. Its large file is on another host: the same server under another name.
class PullTest : public testing::Test {
 protected:
  PullTest() {
    files_["config.json"] = "{}";
    files_["model.safetensors"] = Random(1 << 20, 1);
  }

  void Start() {
    server_ = std::make_unique<HubServer>([this](const HubRequest& request) {
      Meet();
      std::optional<HubReply> reply;
      const auto on_request = OnRequest();
      if (on_request) reply = on_request(request);
      if (!reply) reply = Answer(request);
      Meet();
      return *reply;
    });
    options_.endpoint = server_->url() + prefix_;
    options_.cache_dir = dir_.path();
    options_.token = kToken;
    options_.segment_bytes = 64 << 10;
    options_.first_backoff = std::chrono::milliseconds(1);
    options_.idle_timeout = std::chrono::milliseconds(5000);
  }

  HubReply Answer(const HubRequest& request) const {
    const std::string& target = request.target;
    if (target.starts_with(prefix_ + "/api/models/org/name/revision/")) {
      return {Reply(200, "", List())};
    }
    const std::string resolve = prefix_ + "/org/name/resolve/" + commit_ + "/";
    const std::string cdn = "/cdn/";
    const bool is_head = request.method == "HEAD";
    if (target.starts_with(resolve)) {
      const std::string name = target.substr(resolve.size());
      const auto file = files_.find(name);
      if (file == files_.end()) return {Reply(404, "X-Error-Code: EntryNotFound\r\n", "")};
      if (!name.ends_with(".safetensors")) {
        return {Reply(200, "ETag: \"etag-" + name + "\"\r\n", file->second, is_head)};
      }
      return {Reply(302,
                    "Location: " + server_->url("localhost") + cdn + name +
                        "?signature=secret\r\nX-Linked-Etag: \"" + LargeEtag(file->second) +
                        "\"\r\nX-Linked-Size: " + std::to_string(file->second.size()) + "\r\n",
                    "")};
    }
    if (target.starts_with(cdn)) {
      const std::string name = target.substr(cdn.size(), target.find('?') - cdn.size());
      return {RangeReply(request, files_.at(name))};
    }
    return {Reply(404, "", "")};
  }

  std::string LargeEtag(const std::string& text) const {
    return has_hashes_ ? Sha256Text(text) : "etag-of-a-large-file";
  }

  std::string List() const {
    ordered_json json{{"sha", commit_}, {"siblings", ordered_json::array()}};
    for (const auto& [name, text] : files_) {
      ordered_json file{{"rfilename", name}, {"size", text.size()}};
      if (has_hashes_ && name.ends_with(".safetensors"))
        file["lfs"] = {{"sha256", Sha256Text(text)}};
      json["siblings"].push_back(file);
    }
    return json.dump();
  }

  // Tests change the replies between pulls. ThreadSanitizer does not see the order of requests, so
  // this lock makes it visible.
  void Meet() { const std::lock_guard lock(meeting_); }

  // An abandoned request of a client may still be in progress.
  void AnswerAsUsual() {
    const std::lock_guard lock(meeting_);
    on_request_ = nullptr;
  }
  std::function<std::optional<HubReply>(const HubRequest&)> OnRequest() {
    const std::lock_guard lock(meeting_);
    return on_request_;
  }

  fs::path Pull(std::stop_token stop = {}) {
    Meet();
    const auto meet_again = [this](void*) { Meet(); };
    const std::unique_ptr<void, decltype(meet_again)> at_end(this, meet_again);
    return PullModel(
        model_, options_, [this](const PullStatus& status) { status_ = status; }, std::move(stop));
  }

  std::string Refusal(ErrorCode code) {
    try {
      Pull();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_EQ(std::string(error.what()).find(kToken), std::string::npos) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "it was pulled";
    return {};
  }

  // Bytes of the large file on disk.
  uint64_t Arrived() const {
    const HubCache cache(dir_.path(), "org/name");
    std::error_code absent;
    const auto size =
        fs::file_size(cache.IncompletePath(LargeEtag(files_.at("model.safetensors"))), absent);
    return absent ? 0 : size;
  }

  // Leaves a partial file, as an interrupted pull does.
  void LeavePartial(const std::string& bytes) {
    const HubCache cache(dir_.path(), "org/name");
    cache.CreateFolders();
    std::ofstream(cache.IncompletePath(LargeEtag(files_.at("model.safetensors"))), std::ios::binary)
        << bytes;
  }

  // This field of every request for the large file; "" where it is missing.
  std::vector<std::string> FieldsAtTheCdn(const std::string& name) const {
    std::vector<std::string> values;
    for (const HubRequest& request : server_->requests()) {
      if (!request.target.starts_with("/cdn/")) continue;
      const auto it = request.fields.find(name);
      values.push_back(it == request.fields.end() ? "" : it->second);
    }
    return values;
  }

  void ExpectPulled(const fs::path& path) {
    for (const auto& [name, text] : files_) {
      EXPECT_TRUE(ReadWholeFile(path / name, 1 << 24) == text) << name;
      EXPECT_TRUE(fs::is_symlink(path / name)) << name;
    }
  }

  std::mutex meeting_;  // guards on_request_ while the server runs
  tests::TemporaryDir dir_;
  std::map<std::string, std::string> files_;
  std::function<std::optional<HubReply>(const HubRequest&)> on_request_;
  std::unique_ptr<HubServer> server_;
  HubOptions options_;
  HubReference model_{"org/name", "main", ""};
  PullStatus status_;  // last reported

  // The replies of the server.
  std::string prefix_;
  std::string commit_ = kCommit;
  bool has_hashes_ = true;
};

}  // namespace tandem::engine
